"""Follow classes and states from the choice of layers to the answer."""
