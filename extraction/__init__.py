"""From a data set of conversations to a checked store of hidden states."""
