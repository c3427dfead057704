"""A GPU node that is reached by ssh: prepared, checked, served on and extracted on."""
