"""Configurations in which captured values are wrong or missing: one table, which every reader takes its part from."""
