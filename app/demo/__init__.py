"""`tunewarden demo`: the whole story with real parts, ended by a check from outside."""
