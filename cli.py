"""Assemble the command line; no logic."""


def main() -> None:
    """Run the command line."""
