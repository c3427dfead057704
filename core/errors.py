"""The one family of errors that ends a command, and the exit codes that go with it."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process tells its caller."""

    DONE = 0
    CHECK_FAILED = 1
    USAGE = 2
    SOURCE = 3
    PATCH = 4
    WORKTREE = 5
    SERVER = 6
    EXTRACTION = 7
    INTEGRITY = 8
    BUG = 70
    INTERRUPTED = 130


class AuxtapError(Exception):
    """A command cannot go on; `message` says what failed and where, `hint` the next step."""

    exit_code = ExitCode.CHECK_FAILED

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class CheckFailedError(AuxtapError):
    """A check answered no."""

    exit_code = ExitCode.CHECK_FAILED


class UsageError(AuxtapError):
    """The command was asked for something that cannot be."""

    exit_code = ExitCode.USAGE


class SourceError(AuxtapError):
    """An SGLang tree could not be found, fetched or read."""

    exit_code = ExitCode.SOURCE


class PatchError(AuxtapError):
    """A patch could not be written or does not fit."""

    exit_code = ExitCode.PATCH


class WorktreeError(AuxtapError):
    """A worktree could not be made, changed or removed."""

    exit_code = ExitCode.WORKTREE


class ServerError(AuxtapError):
    """A server or its environment could not be set up, started or reached."""

    exit_code = ExitCode.SERVER


class ExtractionError(AuxtapError):
    """An extraction could not begin or go on."""

    exit_code = ExitCode.EXTRACTION


class IntegrityError(AuxtapError):
    """Stored bytes are not what the ledger says."""

    exit_code = ExitCode.INTEGRITY
