"""Set samples aside by what they say: the same ones whatever stands beside them and in which order."""

import hashlib
import re
from dataclasses import dataclass

from auxtap.core.errors import UsageError

TRAIN, HOLDOUT = "train", "holdout"
_MILLION = 1_000_000
_SHARE = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*(%?)")


@dataclass(frozen=True)
class Holdout:
    """About `per_million` of a million samples are set aside."""

    per_million: int

    def __str__(self) -> str:
        return f"{self.per_million / 10_000:g}%"

    def split_of(self, ids: bytes) -> str:
        """Return the split of the sample with these tokens."""
        return HOLDOUT if self.takes(ids) else TRAIN

    def takes(self, ids: bytes) -> bool:
        """Tell whether the sample with these tokens is set aside; what is to train on and what is not share none."""
        digest = hashlib.sha256(b"auxtap holdout\n" + ids).digest()
        return int.from_bytes(digest[:8], "big") * _MILLION < self.per_million << 64


def parse_holdout(text: str) -> Holdout:
    """Read a share such as `1%` or `0.01`.

    Raises:
        UsageError: it is none, or leaves nothing on one side.
    """
    match = _SHARE.fullmatch(text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    per_million = round(share * _MILLION)
    if not 0 < per_million < _MILLION:
        raise UsageError(f"not a share to hold out: {text!r}", hint="such as --holdout 1%")
    return Holdout(per_million)


def is_holdout(text: str) -> bool:
    """Tell whether `text` is what a `Holdout` says of itself."""
    try:
        return str(parse_holdout(text)) == text
    except UsageError:
        return False


def content_digest(ids: bytes, loss_mask: bytes) -> bytes:
    """Return 16 bytes that are the same for samples of the same tokens and mask only."""
    digest = hashlib.sha256(len(loss_mask).to_bytes(8, "big"))
    digest.update(ids)
    digest.update(loss_mask)
    return digest.digest()[:16]
