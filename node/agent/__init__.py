"""What runs on the node: Python 3.10 and its standard library only, sent as one file."""
