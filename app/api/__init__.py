"""The HTTP surface: routers and wire models. Wire models stay here and are mapped to domain records once."""
