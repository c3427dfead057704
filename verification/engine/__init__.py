"""Proofs with a real server against an independent reference."""
