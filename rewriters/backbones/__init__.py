"""What the model files of a tree hold: classes that run blocks, and how they capture."""
