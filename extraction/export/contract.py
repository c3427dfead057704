"""What a trainer's format must do, and what it says of itself."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from auxtap.extraction.export.whole_sample import SamplePlace, WholeSample
from auxtap.tap.protocol import FINAL, FINAL_PRENORM

ANY_NUMBER = -1
POST_NORM_ONLY, PRE_NORM_ONLY = (FINAL,), (FINAL_PRENORM,)
EITHER = (FINAL, FINAL_PRENORM)


@dataclass(frozen=True)
class TokenRow:
    """The tokens of one exported sample: `input_ids` int64 [tokens], `loss_mask` uint8 [tokens]."""

    place: SamplePlace
    input_ids: NDArray[np.int64]
    loss_mask: NDArray[np.uint8]


@dataclass(frozen=True)
class Needs:
    """What a format must be given: how many layers (`ANY_NUMBER`, or 0 for none), and which final states it can hold.

    With `all_finals` it holds every final state that there is; otherwise the first of `finals` that there is.
    """

    n_layers: int
    finals: tuple[str, ...]
    all_finals: bool = False


@dataclass(frozen=True)
class Shown:
    """What a table of formats says of one: its files below the export, and the tensors in them."""

    files: str
    tensors: str


class TrainerFormat(Protocol):
    """A layout of files that a trainer's own loader reads."""

    @property
    def name(self) -> str:
        """The word for it on the command line."""

    @property
    def shown(self) -> Shown:
        """What the documentation says of it; Markdown, L tokens, H the hidden size, K layers."""

    @property
    def needs(self) -> Needs:
        """What it must be given."""

    @property
    def mapping_file(self) -> PurePosixPath | None:
        """Where its trainer looks for `d2t` and `t2d`, relative to the export; None where it has no such file."""

    @property
    def same_as(self) -> str:
        """The store's format whose files this one's are, byte for byte; empty where there is none."""

    def check_available(self) -> None:
        """Raise UsageError when a package that it needs is not installed."""

    def file_of(self, place: SamplePlace) -> PurePosixPath:
        """Return a sample's file, relative to the export."""

    def write(self, file: BinaryIO, sample: WholeSample) -> None:
        """Write a sample's file."""

    def extra_files(self) -> tuple[PurePosixPath, ...]:
        """Return the files that `finish` writes, the last of them last."""

    def finish(self, folder: Path, rows: Iterable[TokenRow]) -> None:
        """Write what belongs to the export as a whole below `folder`; `rows` are all samples in their order."""
