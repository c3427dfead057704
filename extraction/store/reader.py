"""Read a finished store: samples in the data set's order, the parts of all pipeline stages joined."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

from auxtap.core.errors import IntegrityError, UsageError
from auxtap.extraction.store.ledger import STORED, LedgerLine, read_ledger
from auxtap.extraction.store.store import LEDGER, open_manifest
from auxtap.extraction.store.store_manifest import StoreManifest

Framework = Literal["torch", "numpy"]
_SAFETENSORS = {"torch": "pt", "numpy": "numpy"}


@dataclass(frozen=True)
class StoredSample:
    """One stored sample; its tensors are read when they are asked for."""

    index: int
    sample_id: str
    n_tokens: int
    files: tuple[Path, ...]
    split: str = ""

    def load(self, framework: Framework = "torch") -> dict[str, Any]:
        """Return the tensors of all stages together.

        `input_ids` int64 [tokens], `loss_mask` uint8 [tokens], `hidden.<i>`, `final` (after the norm) and
        `final_prenorm` (before it), as the manifest's `final` says, each [tokens, hidden_size] in the store's dtype,
        on the CPU. safetensors files are memory-mapped.

        Raises:
            IntegrityError: a file is missing or cannot be read.
            UsageError: the framework is not installed, or has no such dtype (numpy has no bfloat16).
        """
        tensors: dict[str, Any] = {}
        for path in self.files:
            tensors.update(_read_torch_file(path) if path.suffix == ".pt" else _read_safetensors(path, framework))
        return tensors


class StoreReader(Sequence[StoredSample]):
    """The stored samples of a store, for iteration and random access; skipped and failed ones are left out."""

    def __init__(self, path: Path, split: str | None = None) -> None:
        """Read manifest and ledger; the samples' files stay closed. `split` takes those of that name only.

        Raises:
            ExtractionError: there is no store.
            IntegrityError: its manifest or ledger are unreadable.
            UsageError: a split is asked for and it has none.
        """
        self.path = path
        self.manifest: StoreManifest = open_manifest(path)
        lines = read_ledger(path / LEDGER).last_lines().values()
        if split is not None and not self.manifest.dataset.holdout:
            raise UsageError(f"store {path} has no splits", hint="extract --holdout 1% makes train and holdout")
        wanted = (line for line in lines if line.fate == STORED and split in (None, line.split))
        self._lines = sorted(wanted, key=lambda line: line.index)

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, position: int) -> StoredSample: ...
    @overload
    def __getitem__(self, position: slice) -> "list[StoredSample]": ...
    def __getitem__(self, position: int | slice) -> "StoredSample | list[StoredSample]":
        if isinstance(position, slice):
            return [self._sample(line) for line in self._lines[position]]
        return self._sample(self._lines[position])

    def __iter__(self) -> Iterator[StoredSample]:
        return (self._sample(line) for line in self._lines)

    def by_id(self, sample_id: str) -> StoredSample:
        """Return the sample with this id of the data set.

        Raises:
            KeyError: none is stored under it.
        """
        for line in self._lines:
            if line.sample_id == sample_id:
                return self._sample(line)
        raise KeyError(sample_id)

    def torch_dataset(self) -> Any:
        """Return a map-style `torch.utils.data.Dataset` whose items are what `StoredSample.load` returns.

        Raises:
            UsageError: torch is not installed.
        """
        try:
            from torch.utils.data import Dataset
        except ImportError:
            raise UsageError("a torch dataset needs torch", hint="pip install 'auxtap[pt]'") from None
        reader = self

        class StoreDataset(Dataset):  # type: ignore[misc]
            """The stored samples by position."""

            def __len__(self) -> int:
                return len(reader)

            def __getitem__(self, position: int) -> Mapping[str, Any]:
                return reader[position].load("torch")

        return StoreDataset()

    def _sample(self, line: LedgerLine) -> StoredSample:
        return StoredSample(
            line.index, line.sample_id, line.n_tokens, tuple(self.path / part.file for part in line.parts), line.split
        )


def _read_safetensors(path: Path, framework: Framework) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework=_SAFETENSORS[framework]) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - the file is no mapping
    except (ImportError, TypeError, AttributeError) as error:
        hint = "pip install 'auxtap[pt]'" if framework == "torch" else "numpy has no bfloat16: load with torch"
        raise UsageError(f"{path.name} cannot be read with {framework}: {error}", hint=hint) from None
    except (OSError, SafetensorError) as error:
        raise IntegrityError(f"{path} cannot be read: {error}", hint="auxtap check tells what else is wrong") from None


def _read_torch_file(path: Path) -> dict[str, Any]:
    try:
        import torch
    except ImportError:
        raise UsageError(f"{path.name} needs torch", hint="pip install 'auxtap[pt]'") from None
    try:
        # weights_only: tensors and nothing else, whoever wrote the file.
        return dict(torch.load(path, weights_only=True, mmap=True))
    except (OSError, RuntimeError, ValueError) as error:
        raise IntegrityError(f"{path} cannot be read: {error}", hint="auxtap check tells what else is wrong") from None
