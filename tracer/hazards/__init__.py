"""Find configurations in which captured values are wrong or missing."""
