"""The finished data set: written once, read often."""
