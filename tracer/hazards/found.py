"""Where a hazard shows in the source, and what of it is this tree's own."""

from dataclasses import dataclass

from auxtap.tracer.report.trace_report import Evidence


@dataclass(frozen=True)
class Found:
    """What a finder says of one place; what stays empty is as the hazard's row says.

    `settings` are the server's options that bring it about here, `default_on` says whether they are on without being
    asked for, `hardware` on which machines, None for all.
    """

    evidence: tuple[Evidence, ...]
    trigger: str = ""
    settings: tuple[str, ...] = ()
    default_on: bool = False
    hardware: str | None = None
