"""Proofs without a server: the patch does only what it says."""
