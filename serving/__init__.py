"""Start, watch and stop a patched server."""
