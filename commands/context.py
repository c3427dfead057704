"""What every command needs from its surroundings."""

import os
from pathlib import Path

from auxtap.core.cache import CacheLayout
from auxtap.core.errors import UsageError

ENV_CACHE = "AUXTAP_CACHE"
# The table of `auxtap.toml` with the names of a fork's own capture code.
FORK_TABLE = "fork"


_cache_of_file: str | None = None


def use_cache(folder: str | None) -> None:
    """Take the cache that a configuration file names; None where it names none."""
    global _cache_of_file
    _cache_of_file = folder


def cache_layout() -> CacheLayout:
    """Return the cache: `AUXTAP_CACHE`, else what `auxtap.toml` says, else this user's cache folder for auxtap."""
    configured = os.environ.get(ENV_CACHE, _cache_of_file)
    if configured is not None and not configured.strip():
        raise UsageError(f"{ENV_CACHE} is set but empty", hint=f"unset {ENV_CACHE} or give it a folder")
    if configured:
        return CacheLayout(Path(configured).expanduser().resolve())
    import platformdirs

    return CacheLayout(platformdirs.user_cache_path("auxtap"))


def parse_final(text: str | None) -> str:
    """Read which final states are wanted; empty when nothing was said.

    Raises:
        UsageError: it is none of them.
    """
    from auxtap.serving.profile import FINAL_STATES

    if text is not None and text not in FINAL_STATES:
        raise UsageError(f"--final {text!r} is unknown", hint=f"one of {', '.join(FINAL_STATES)}")
    return text or ""


def parse_layers(text: str) -> tuple[int, ...]:
    """Read capture indices such as `3,31,59`; ascending, without repeats.

    Raises:
        UsageError: not a list of positive whole numbers, or one twice.
    """
    try:
        layers = sorted(int(item) for item in text.split(","))
    except ValueError:
        raise UsageError(
            f"not a list of capture indices: {text!r}", hint="give whole numbers with commas, such as --layers 3,31,59"
        ) from None
    if layers[0] < 1:
        raise UsageError(
            f"capture index {layers[0]} cannot be captured: index i is the state that enters decoder block i",
            hint="indices begin at 1; auxtap patch shows the draft-config ids of each class for them",
        )
    if len(set(layers)) != len(layers):
        raise UsageError(f"a capture index is named twice: {text!r}", hint="name each capture index once")
    return tuple(layers)
