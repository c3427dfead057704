"""The storage formats that there are, by name."""

from auxtap.core.errors import UsageError
from auxtap.extraction.store.formats.safetensors_part import SafetensorsPart
from auxtap.extraction.store.formats.stored_part import PartFormat
from auxtap.extraction.store.formats.torch_part import TorchPart

PART_FORMATS: tuple[PartFormat, ...] = (SafetensorsPart(), TorchPart())


def part_format(name: str) -> PartFormat:
    """Return the format of that name.

    Raises:
        UsageError: there is none, or a package that it needs is missing.
    """
    for candidate in PART_FORMATS:
        if candidate.name == name:
            candidate.check_available()
            return candidate
    known = ", ".join(candidate.name for candidate in PART_FORMATS)
    raise UsageError(f"unknown format {name!r}", hint=f"formats: {known}")
