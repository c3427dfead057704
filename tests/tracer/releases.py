"""Released trees for the tracer's tests, opened once."""

import functools
import json
from pathlib import Path

from auxtap.checkout.source import open_source
from auxtap.commands.context import cache_layout
from auxtap.core.source_tree import SourceTree

ROOT = Path(__file__).resolve().parents[2]
FEW_RELEASES = ("0.4.5", "0.5.9", "0.5.14", "0.5.23")


def all_releases() -> tuple[str, ...]:
    return tuple(json.loads((ROOT / "checkout/releases.json").read_text()))


@functools.lru_cache(maxsize=2)
def release_tree(release: str) -> SourceTree:
    return open_source(f"pypi:{release}", cache_layout()).tree
