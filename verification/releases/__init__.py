"""What becomes of the patch over the releases."""
