"""Run an extraction: requests out, parts in, every sample to a fate."""

from auxtap.core.errors import ExtractionError
from auxtap.extraction.job import (
    ExtractionJob,
    ExtractionProgress,
    ExtractionSummary,
    Observer,
    SampleFate,
    StopRequest,
    ignore_progress,
)

__all__ = [
    "ExtractionJob",
    "ExtractionProgress",
    "ExtractionSummary",
    "Observer",
    "SampleFate",
    "StopRequest",
    "ignore_progress",
    "run_extraction",
]


def run_extraction(
    job: ExtractionJob, observe: Observer = ignore_progress, *, stop: StopRequest | None = None
) -> ExtractionSummary:
    """Extract every sample of the job that its store does not hold yet.

    Raises:
        ServerError: the server cannot be reached, or went away in the middle.
        ExtractionError: dataset, spool or store are not fit for the job; what is stored stays.
    """
    raise ExtractionError("extraction is not there yet")
