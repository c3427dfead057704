"""Ways to change the text of a function."""

import re

from auxtap.tests.rewriters.drifts import Change


def swap(old: str, new: str) -> Change:
    """Put one text in the place of another, which must stand there; further lines get its indentation."""

    def apply(text: str) -> str:
        assert old in text, old
        start = text.rindex("\n", 0, text.index(old)) + 1
        indent = re.match(" *", text[start:])
        return text.replace(old, new.replace("\n", "\n" + indent[0] if indent else ""), 1)

    return apply


def lines(pattern: str, added: str, *, behind: bool = False, deeper: bool = False) -> Change:
    """Insert lines before the first line that matches (or behind it), with its indentation (or one level deeper)."""

    def apply(text: str) -> str:
        found = re.search(rf"^([ ]*){pattern}.*\n", text, re.MULTILINE)
        assert found is not None, pattern
        indent = found[1] + ("    " if deeper else "")
        block = "".join(f"{indent}{line}\n" for line in added.split("\n"))
        at = found.end() if behind else found.start()
        return text[:at] + block + text[at:]

    return apply


def both(*changes: Change) -> Change:
    def apply(text: str) -> str:
        for change in changes:
            text = change(text)
        return text

    return apply


def end(added: str) -> Change:
    """Add lines at the end of the file."""
    return lambda text: f"{text}\n\n{added}\n"
