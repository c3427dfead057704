"""Read a server's log while it grows: what it is doing, and why it died."""

import re
from dataclasses import dataclass
from pathlib import Path

REFUSAL = "auxtap: refused:"
MAX_KEPT_LINES = 2000
MAX_REASON_LENGTH = 400

_STAMP = re.compile(r"^\[[^\]]{8,60}\]\s*")
_EXCEPTION = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Refused|Exit|Interrupt|NotFound|Failure)\b(?::|$)")
_ARGUMENT_ERROR = re.compile(r"^[\w.-]+: error: ")
_LOGGED_ERROR = re.compile(r"\b(?:ERROR|CRITICAL)\b|^\S*python\S*: |error while attempting to bind")
# What dies because something else died says nothing about the cause.
_CONSEQUENCES = (
    "Initialization failed",
    "KeyboardInterrupt",
    "SystemExit",
    "EOFError",
    "BrokenPipeError",
    "ConnectionResetError",
    "Ignore import error",
    "Rank 0 scheduler is dead",
)
# SGLang's log lines -> what a person wants to read meanwhile.
_PHASES = (
    ("server_args=", "SGLang is imported, its processes start"),
    ("Init torch distributed begin", "ranks are joining"),
    ("Load weight begin", "loading weights"),
    ("Load weight end", "weights are loaded"),
    ("auxtap: armed", "the tap is armed"),
    ("Capture cuda graph begin", "capturing CUDA graphs"),
    ("max_total_num_tokens=", "memory pools are allocated"),
    ("Uvicorn running on", "the HTTP server listens"),
    ("fired up and ready to roll", "the server is ready"),
)


@dataclass(frozen=True)
class LogNews:
    """What was appended since the last look: phases reached, and the tap's refusal when there is one."""

    phases: tuple[str, ...]
    refusal: str | None


class ServerLog:
    """The log of one server, read from `start_offset` on."""

    def __init__(self, path: Path, start_offset: int = 0) -> None:
        self.path = path
        self._offset = start_offset
        self._partial = ""
        self._lines: list[str] = []

    def read_news(self) -> LogNews:
        """Read what was appended; a line counts once it is complete."""
        fresh = self._read_lines()
        self._lines = (self._lines + fresh)[-MAX_KEPT_LINES:]
        phases = tuple(phase for line in fresh for mark, phase in _PHASES if mark in line)
        refusals = [_strip_stamp(line) for line in fresh if REFUSAL in line]
        return LogNews(phases, _cut_refusal(refusals[0]) if refusals else None)

    def failure_reason(self) -> str:
        """Return the line that says best why the server died."""
        self.read_news()
        lines = [*self._lines, self._partial] if self._partial else self._lines
        return failure_reason(lines)

    def last_lines(self, n_lines: int) -> tuple[str, ...]:
        """Return the last lines that are not empty."""
        self.read_news()
        return tuple([line for line in self._lines if line.strip()][-n_lines:])

    def _read_lines(self) -> list[str]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *complete, self._partial = (self._partial + data.decode("utf-8", "replace")).split("\n")
        return [line.rstrip("\r") for line in complete]


def failure_reason(lines: list[str]) -> str:
    """Return the line of a log that says best why a server died.

    The tap's own refusal, else the last exception that is no consequence of another, else the last error that was
    logged, else the last line.
    """
    texts = [_strip_stamp(line) for line in lines if line.strip()]
    for text in texts:
        if REFUSAL in text:
            return _cut_refusal(text)
    causes = [
        text for text in texts if (_EXCEPTION.match(text) or _ARGUMENT_ERROR.match(text)) and not _is_consequence(text)
    ]
    if not causes:
        causes = [text for text in texts if _LOGGED_ERROR.search(text) and not _is_consequence(text)]
    if not causes:
        causes = texts[-1:]
    return causes[-1][:MAX_REASON_LENGTH] if causes else "the log is empty"


def _is_consequence(text: str) -> bool:
    return any(mark in text for mark in _CONSEQUENCES)


def _strip_stamp(line: str) -> str:
    return _STAMP.sub("", line).strip()


def _cut_refusal(text: str) -> str:
    return text[text.index(REFUSAL) :][:MAX_REASON_LENGTH]
