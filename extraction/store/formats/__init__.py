"""How a stored sample is written, one module a format."""
