"""Follow a collector into the blocks that it is handed to."""
