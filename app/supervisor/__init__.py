"""`tunewarden run`: the keeper (parent, terminal, log; standard library only) and the agent (orders, journal, HTTP)."""
