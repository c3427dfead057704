"""Find profiles by name, and hand out the starting points."""

import importlib.resources
from pathlib import Path

from auxtap.core.errors import UsageError
from auxtap.core.files import publish_bytes
from auxtap.node.node_profile import NodeProfile, read_profile
from auxtap.node.toml_table import nearest

FOLDER = Path("nodes")


def starting_points() -> tuple[str, ...]:
    """Return the names of the ready-made starting points."""
    return tuple(sorted(path.stem for path in _shipped().glob("*.toml")))


def _shipped() -> Path:
    return Path(str(importlib.resources.files("auxtap.node.profiles")))


def find_profile(name: str, folder: Path = FOLDER) -> NodeProfile:
    """Read the profile called `name` in `folder`, or the file that `name` is the path of.

    Raises:
        UsageError: there is none, or it is not valid.
    """
    if name.endswith(".toml"):
        return read_profile(Path(name))
    path = folder / f"{name}.toml"
    if Path(name).name != name or not path.is_file():
        known = sorted(each.stem for each in folder.glob("*.toml"))
        meant = nearest(name, known)
        hint = f"did you mean {meant}?" if meant else f"auxtap node new {name} --from {starting_points()[0]} makes one"
        raise UsageError(f"there is no profile {path}", hint=hint)
    return read_profile(path)


def known_profiles(folder: Path = FOLDER) -> tuple[str, ...]:
    """Return the names of the profiles in `folder`, ascending."""
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


def copy_starting_point(name: str, start: str, folder: Path = FOLDER) -> Path:
    """Write the starting point `start` as the profile `name` and return its path.

    Raises:
        UsageError: there is no such starting point, or a profile of that name exists.
    """
    points = starting_points()
    if start not in points:
        meant = nearest(start, points)
        raise UsageError(
            f"there is no starting point {start!r}",
            hint=f"did you mean {meant}?" if meant else f"there are: {', '.join(points)}",
        )
    target = folder / f"{name}.toml"
    if Path(name).name != name or name.startswith("."):
        raise UsageError(
            f"{name!r} cannot be a profile's name", hint="use letters, digits, dots, dashes and underscores"
        )
    if target.exists():
        raise UsageError(f"{target} exists already", hint="edit it, or give another name")
    try:
        publish_bytes(target, (_shipped() / f"{start}.toml").read_bytes())
    except OSError as error:
        raise UsageError(
            f"cannot write {target}: {error.strerror}", hint="check the permissions of the folder"
        ) from None
    return target
