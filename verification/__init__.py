"""Proofs: statically over the patch, numerically with a real server against a reference."""
