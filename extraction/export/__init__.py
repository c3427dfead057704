"""A store in a trainer's own files."""
