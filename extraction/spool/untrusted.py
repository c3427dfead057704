"""Make text from outside fit for a terminal and a ledger."""


def printable(value: object, limit: int = 500) -> str:
    """Return one line of at most `limit` printable characters, empty for what is no text."""
    text = value[:limit] if isinstance(value, str) else ""
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())
