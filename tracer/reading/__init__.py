"""Read every class that runs decoder blocks: what it captures, or what is in the way."""
