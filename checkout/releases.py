"""The lock table of released wheels."""

import difflib
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from auxtap.core.errors import SourceError
from auxtap.core.release import release_key

PYPI_PREFIX = "pypi:"


@dataclass(frozen=True)
class ReleaseWheel:
    """The one wheel that stands for a release, whatever interpreter runs the tool."""

    release: str
    wheel: str
    sha256: str
    n_bytes: int

    @property
    def snapshot_name(self) -> str:
        """The name of the repository in the cache that holds the release."""
        return f"sglang-{self.release}-{self.sha256[:12]}.git"


@cache
def locked_wheels() -> tuple[ReleaseWheel, ...]:
    """Return every release of the lock table, oldest first."""
    table = json.loads(files("auxtap.checkout").joinpath("releases.json").read_text())
    wheels = [
        ReleaseWheel(release, entry["wheel"], entry["sha256"], entry["n_bytes"]) for release, entry in table.items()
    ]
    return tuple(sorted(wheels, key=_age))


def _age(wheel: ReleaseWheel) -> tuple[int, int, int, int]:
    return release_key(wheel.release)


def find_release(release: str) -> ReleaseWheel:
    """Return the locked wheel of `release`.

    Raises:
        SourceError: the lock table has no such release; the hint names the nearest ones.
    """
    known = {wheel.release: wheel for wheel in locked_wheels()}
    if release in known:
        return known[release]
    near = difflib.get_close_matches(release, known, n=3, cutoff=0.5) or list(known)[-3:]
    raise SourceError(
        f"SGLang {release or '(no version)'} is not among the {len(known)} releases that auxtap knows",
        hint=f"did you mean {', '.join(sorted(near, key=release_key))}? For any other tree give its PATH",
    )
