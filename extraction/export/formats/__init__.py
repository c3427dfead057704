"""The files that trainers read, one module a format."""
