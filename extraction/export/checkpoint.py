"""What formats share that keep one torch file a sample and nothing else."""

from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from auxtap.extraction.export.contract import TokenRow
from auxtap.extraction.export.torch_file import require_torch
from auxtap.extraction.export.whole_sample import SamplePlace


class CheckpointFiles:
    """No files beside the samples', torch needed."""

    name: str
    same_as = ""

    def check_available(self) -> None:
        """Raise UsageError when torch is not installed."""
        require_torch(self.name)

    def extra_files(self) -> tuple[PurePosixPath, ...]:
        """Return none."""
        return ()

    def finish(self, folder: Path, rows: Iterable[TokenRow]) -> None:
        """Write nothing."""


def in_groups(place: SamplePlace, size: int) -> PurePosixPath:
    """Return `rows_{from}-{to}/data_{index}.ckpt`, as the trainers' own scripts group files."""
    first = place.index // size * size
    return PurePosixPath(f"rows_{first}-{first + size}", f"data_{place.index}.ckpt")
