"""The documentation's own script, and the commands that its pages show."""

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code on a page."""

    language: str
    title: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    return [Block(match[1], match[2] or "", match[3]) for match in _BLOCK.finditer(page.read_text())]


def shown_commands() -> Iterator[tuple[str, str]]:
    """Yield (page, command line) of each auxtap command in the documentation and the README."""
    for page in sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]):
        name = str(page.relative_to(ROOT))
        lines = [line for block in blocks_of(page) if block.language == "sh" for line in _joined(block.text)]
        if name == "README.md":
            lines = [line.removeprefix("    ") for line in _joined(page.read_text()) if line.startswith("    ")]
        for line in lines:
            command = re.sub(r"^\$ ", "", line.strip())
            if command.startswith("auxtap "):
                yield name, re.split(r"\s{2,}|\s+#", command)[0]


def _joined(text: str) -> list[str]:
    return re.sub(r"\s*\\\n\s*", " ", text).splitlines()


@pytest.fixture(scope="session")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs/pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
