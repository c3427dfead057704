"""Read a source file: its outline, the fragments that are parsed, and where the names stand."""
