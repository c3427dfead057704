"""What of a patch travels to the node: its own lines and digests, not a line of SGLang."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from auxtap.node.flags import HazardFlag


@dataclass(frozen=True)
class NodeSource:
    """The SGLang that a patch is made from: its release, and the sha256 of every `.py` file by its path.

    `needed` are the flags that its servers must be started with.
    """

    release: str
    files: Mapping[str, str] = field(hash=False)
    needed: tuple[HazardFlag, ...]


@dataclass(frozen=True)
class NodePatch:
    """A proved patch; `after` are the digests of the files that it changes or adds, `layers` its capture indices."""

    source: NodeSource
    patch: bytes
    patch_digest: str
    source_digest: str
    after: Mapping[str, str] = field(hash=False)
    layers: tuple[int, ...]

    def payload(self) -> bytes:
        """Return it as it is sent."""
        value = {
            "release": self.source.release,
            "patch": self.patch.decode("utf-8", "surrogateescape"),
            "patch_digest": self.patch_digest,
            "source_digest": self.source_digest,
            "files": dict(self.source.files),
            "after": dict(self.after),
        }
        return zlib.compress(json.dumps(value).encode())
