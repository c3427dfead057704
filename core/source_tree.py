"""An SGLang tree as data: what the tracer and the rewriters read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

PACKAGE_ROOT = PurePosixPath("python/sglang")
SRT_ROOT = PACKAGE_ROOT / "srt"


@dataclass(frozen=True)
class SourceTree:
    """The `.py` files of one SGLang tree at one commit, in upstream's `python/sglang/...` layout.

    `release` is the version that the tree says it is (`0.5.9`), `origin` what the person asked for
    (`pypi:0.5.9`), `commit` the commit that was read, `files` maps repo-relative paths to bytes.
    """

    release: str
    origin: str
    commit: str
    files: Mapping[PurePosixPath, bytes]
