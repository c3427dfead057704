"""The canary: checks of a real server that need no reference model."""
