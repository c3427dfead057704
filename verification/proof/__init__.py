"""What was proved of a patch, and how far."""
