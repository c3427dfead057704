"""Scripts that the engine environment's python runs by path; they do not import auxtap."""
