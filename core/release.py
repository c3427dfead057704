"""Order SGLang's release numbers."""

import re

_RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:\.?post(\d+))?")


def release_key(release: str) -> tuple[int, int, int, int]:
    """Return a sort key for a final release or post-release such as `0.5.10.post1`.

    Raises:
        ValueError: `release` is neither.
    """
    match = _RELEASE.fullmatch(release)
    if match is None:
        raise ValueError(f"not a final release or post-release: {release!r}")
    major, minor, patch, post = match.groups(default="0")
    return int(major), int(minor), int(patch), int(post)
