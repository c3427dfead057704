"""An SGLang tree as data: what the tracer and the rewriters read."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from auxtap.core.files import sha256_bytes

PACKAGE_ROOT = PurePosixPath("python/sglang")
SRT_ROOT = PACKAGE_ROOT / "srt"
MODELS_ROOT = SRT_ROOT / "models"
# By this file a folder is known for the package `sglang`.
PACKAGE_MARK = PurePosixPath("srt/server_args.py")


def is_below(path: PurePosixPath, folder: PurePosixPath) -> bool:
    """Tell whether a path lies below a folder; of thousands of paths, `is_relative_to` is slow to tell."""
    return str(path).startswith(f"{folder}/")


def find_package(path: Path) -> Path | None:
    """Return the `sglang` package of a checkout, of a folder of packages, or of the package itself."""
    places = (path / PACKAGE_ROOT, path / "sglang", path)
    return next((package for package in places if (package / PACKAGE_MARK).is_file()), None)


def package_files(package: Path) -> Iterator[tuple[PurePosixPath, Path]]:
    """Yield the plain files of a package on disk, bytecode left out: each by its path in upstream's layout.

    Raises:
        OSError: a folder cannot be read.
    """
    for folder, folders, names in os.walk(package, onerror=_raise):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield PACKAGE_ROOT / PurePosixPath(path.relative_to(package)), path


def _raise(error: OSError) -> None:
    raise error


@dataclass(frozen=True)
class SourceTree:
    """The `.py` files of one SGLang tree, in upstream's `python/sglang/...` layout.

    `release` is the version that the tree says it is (`0.5.9`), `origin` what the person asked for
    (`pypi:0.5.9`), `commit` the commit that was read, `files` maps repo-relative paths to bytes. `changed` are those of
    a checkout that are on disk, and were read, not as they are in `commit`.
    """

    release: str
    origin: str
    commit: str
    files: Mapping[PurePosixPath, bytes]
    changed: tuple[PurePosixPath, ...] = ()


def digest_below(tree: "SourceTree", *roots: PurePosixPath) -> bytes:
    """Return one sha256 over the files of a tree below any of `roots`; it reads each byte once."""
    digest = hashlib.sha256()
    for path in sorted(path for path in tree.files if any(is_below(path, root) for root in roots)):
        data = tree.files[path]
        digest.update(f"{path}\0{len(data)}\0".encode(errors="surrogateescape") + data)
    return digest.digest()


def files_digest(files: Mapping[PurePosixPath, bytes]) -> str:
    """Return one sha256 over the paths and contents of `files`, whatever their order."""
    lines = [f"{path}\0{sha256_bytes(data)}\n" for path, data in files.items()]
    return sha256_bytes("".join(sorted(lines)).encode(errors="surrogateescape"))
