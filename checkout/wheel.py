"""Fetch the locked wheel of a release and read the package that it holds."""

import hashlib
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from auxtap.checkout.index import PackageIndex, chosen_index, find_file_url
from auxtap.checkout.releases import ReleaseWheel
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import SourceError
from auxtap.core.files import BLOCK_BYTES, fsync_directory, held_lock, sha256_file

if TYPE_CHECKING:
    import httpx

PROJECT = "sglang"
TIMEOUT_S = 60.0
MAX_UNPACKED_BYTES = 1 << 30
MAX_MEMBER_BYTES = 128 << 20
MAX_MEMBERS = 100_000


def fetch_wheel(locked: ReleaseWheel, cache: CacheLayout, progress: Callable[[str], None]) -> Path:
    """Return the cached wheel of a release, downloaded and checked against its sha256 first where it is absent.

    Raises:
        SourceError: the index cannot be reached, does not have it, or sends other bytes.
    """
    path = cache.wheels / locked.wheel
    try:
        with held_lock(cache.wheels / f".{locked.wheel}.lock"):
            if path.is_file() and sha256_file(path) == locked.sha256:
                return path
            path.unlink(missing_ok=True)
            _download(locked, path, progress)
    except OSError as error:
        raise SourceError(
            f"cannot write {error.filename or cache.wheels}: {error.strerror or error}",
            hint="set AUXTAP_CACHE to a folder of yours with free space",
        ) from None
    return path


def _download(locked: ReleaseWheel, path: Path, progress: Callable[[str], None]) -> None:
    import httpx

    index = chosen_index()
    progress(f"downloading {locked.wheel} ({locked.n_bytes / 1e6:.1f} MB) from {index.shown}")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with httpx.Client(timeout=TIMEOUT_S, follow_redirects=True) as client:
            url = find_file_url(client, index, PROJECT, locked.wheel)
            _stream(client, url, temporary, locked, index)
        temporary.replace(path)
        fsync_directory(path.parent)
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        raise SourceError(f"{index.shown} answered {status} for {locked.wheel}", hint=index.hint) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise SourceError(f"cannot download {locked.wheel}: {reason}", hint=index.hint) from None
    finally:
        temporary.unlink(missing_ok=True)


def _stream(client: "httpx.Client", url: str, temporary: Path, locked: ReleaseWheel, index: PackageIndex) -> None:
    digest, n_bytes = hashlib.sha256(), 0
    with client.stream("GET", url) as response, temporary.open("wb") as file:
        response.raise_for_status()
        for block in response.iter_bytes(BLOCK_BYTES):
            n_bytes += len(block)
            if n_bytes > locked.n_bytes:
                break
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    if n_bytes != locked.n_bytes or digest.hexdigest() != locked.sha256:
        size = f"more than {locked.n_bytes}" if n_bytes > locked.n_bytes else str(n_bytes)
        raise SourceError(
            f"{locked.wheel} from {index.shown} is not the released file: sha256 {digest.hexdigest()[:16]}..., "
            f"{size} bytes; the lock table has {locked.sha256[:16]}..., {locked.n_bytes} bytes",
            hint=f"nothing was kept; {index.hint}",
        )


def read_package(wheel: Path) -> dict[PurePosixPath, bytes]:
    """Return the files of the `sglang` package within a wheel by their path below the package, in order.

    Compiled libraries and bytecode are left out.

    Raises:
        SourceError: it is no wheel, or a member's name, kind or size is not one of a package.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            return _read_members(archive, wheel.name)
    except (zipfile.BadZipFile, EOFError, NotImplementedError) as error:
        raise SourceError(f"{wheel.name} cannot be unpacked: {error}", hint=f"delete {wheel}") from None


def _read_members(archive: zipfile.ZipFile, name: str) -> dict[PurePosixPath, bytes]:
    members = archive.infolist()
    if len(members) > MAX_MEMBERS:
        raise SourceError(
            f"{name} has {len(members)} members, more than a package has",
            hint="delete the wheel from the cache and run the command again",
        )
    files: dict[PurePosixPath, bytes] = {}
    total = 0
    for member in members:
        path = _member_path(member, name)
        if member.is_dir() or path.parts[0] != PROJECT:
            continue
        inner = path.relative_to(PROJECT)
        if not is_package_file(inner):
            continue
        total += member.file_size
        if member.file_size > MAX_MEMBER_BYTES or total > MAX_UNPACKED_BYTES:
            raise SourceError(
                f"{name}: {path} unpacks to more bytes than a source package has",
                hint="the wheel in the cache is not the one of the release: delete it",
            )
        if inner in files:
            raise SourceError(
                f"{name} holds {path} twice", hint="the wheel in the cache is not the one of the release: delete it"
            )
        files[inner] = archive.read(member)
    if PurePosixPath("srt/server_args.py") not in files:
        raise SourceError(
            f"{name} holds no SGLang server (sglang/srt/server_args.py is missing)",
            hint="the wheel in the cache is not the one of the release: delete it",
        )
    return dict(sorted(files.items()))


def _member_path(member: zipfile.ZipInfo, name: str) -> PurePosixPath:
    path = PurePosixPath(member.filename)
    odd = "\\" in member.filename or "\n" in member.filename or path.is_absolute() or ".." in path.parts
    if odd or not path.parts or stat.S_ISLNK(member.external_attr >> 16):
        raise SourceError(
            f"{name} has a member that leaves its folder: {member.filename!r}",
            hint="the wheel in the cache is not the one of the release: delete it",
        )
    return path


def is_package_file(path: PurePosixPath) -> bool:
    """Tell whether a file of an SGLang package belongs to a source tree: no bytecode, no compiled library."""
    compiled = path.suffix in (".pyc", ".pyo", ".so") or ".so." in path.name
    return not compiled and "__pycache__" not in path.parts
