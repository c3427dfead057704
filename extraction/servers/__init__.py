"""One server, and what is on its way through it."""
