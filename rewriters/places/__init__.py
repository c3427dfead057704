"""The places of the patch: one module a kind of line."""
