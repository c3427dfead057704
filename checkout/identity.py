"""Tell which commit a source is without reading it, for results that are kept by commit."""

from dataclasses import dataclass

from auxtap.checkout.releases import PYPI_PREFIX, find_release
from auxtap.core.cache import CacheLayout


@dataclass(frozen=True)
class Identity:
    """The release and the commit that a source comes to."""

    release: str
    commit: str


def known_identity(spec: str, cache: CacheLayout) -> Identity | None:
    """Return the commit of a released source that stands in the cache; None for anything that has to be opened.

    Raises:
        SourceError: there is no such release.
    """
    if not spec.startswith(PYPI_PREFIX):
        return None
    locked = find_release(spec.removeprefix(PYPI_PREFIX))
    try:
        text = (cache.sources / locked.snapshot_name / "refs/heads/source").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    whole = len(text) == 40 and set(text) <= set("0123456789abcdef")
    return Identity(locked.release, text) if whole else None
