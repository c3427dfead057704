"""What a trainer's format must do, and which there are; one module a format."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from auxtap.core.errors import UsageError
from auxtap.extraction.export.formats.sample import SamplePlace, WholeSample
from auxtap.tap.protocol import FINAL, FINAL_PRENORM, TensorSlot

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


class TrainerFormat(Protocol):
    """A layout of files that a trainer's own loader reads."""

    @property
    def name(self) -> str:
        """The word for it on the command line."""

    @property
    def needs(self) -> Needs:
        """What it must be given."""

    @property
    def mapping_file(self) -> PurePosixPath | None:
        """Where its trainer looks for `d2t` and `t2d`, relative to the export; None where it has no such file."""

    @property
    def numbers_rows(self) -> bool:
        """Whether files are found by the number of their row, so that there may be no gap."""

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


def joined_slots(sample: WholeSample) -> tuple[TensorSlot, ...]:
    """Lay out the tensors of a whole sample as the store does: ids, layers ascending, final states, mask."""
    slots = [TensorSlot("input_ids", "I64", (sample.n_tokens,), 0)]
    for name in sample.states:
        offset = slots[-1].offset + slots[-1].n_bytes
        slots.append(TensorSlot(name, sample.dtype, (sample.n_tokens, sample.hidden_size), offset))
    offset = slots[-1].offset + slots[-1].n_bytes
    return (*slots, TensorSlot("loss_mask", "U8", (sample.n_tokens,), offset))


def trainer_formats() -> tuple[TrainerFormat, ...]:
    """Return every format."""
    from auxtap.extraction.export.formats.angelslim import AngelSlim
    from auxtap.extraction.export.formats.ge_data import GeData
    from auxtap.extraction.export.formats.joined import JoinedSafetensors, JoinedTorch
    from auxtap.extraction.export.formats.modelopt import ModelOpt
    from auxtap.extraction.export.formats.specforge import SpecForge
    from auxtap.extraction.export.formats.speculators import Speculators

    return (SpecForge(), Speculators(), ModelOpt(), AngelSlim(), GeData(), JoinedTorch(), JoinedSafetensors())


def trainer_format(name: str) -> TrainerFormat:
    """Return the format of that name, its packages not looked for yet.

    Raises:
        UsageError: there is none.
    """
    formats = trainer_formats()
    for candidate in formats:
        if candidate.name == name:
            return candidate
    known = ", ".join(candidate.name for candidate in formats)
    raise UsageError(f"unknown format {name!r}", hint=f"formats: {known}")
