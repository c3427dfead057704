"""An SGLang tree as data: what the tracer and the rewriters read."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from auxtap.core.files import sha256_bytes

PACKAGE_ROOT = PurePosixPath("python/sglang")
SRT_ROOT = PACKAGE_ROOT / "srt"
MODELS_ROOT = SRT_ROOT / "models"


def is_below(path: PurePosixPath, folder: PurePosixPath) -> bool:
    """Tell whether a path lies below a folder; of thousands of paths, `is_relative_to` is slow to tell."""
    return str(path).startswith(f"{folder}/")


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


def files_digest(files: Mapping[PurePosixPath, bytes]) -> str:
    """Return one sha256 over the paths and contents of `files`, whatever their order."""
    lines = [f"{path}\0{sha256_bytes(data)}\n" for path, data in files.items()]
    return sha256_bytes("".join(sorted(lines)).encode(errors="surrogateescape"))
