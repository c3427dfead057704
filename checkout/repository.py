"""Run git through GitPython, apart from the person's environment, hooks and signing."""

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from auxtap.core.errors import SourceError

IDENTITY_NAME = "auxtap"
IDENTITY_EMAIL = "auxtap@localhost"
# Commits that the tool makes carry no time of day, so that the same content has the same id everywhere.
IDENTITY_DATE = "1767225600 +0000"

_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.autocrlf": "false",
    "core.quotePath": "false",
    "commit.gpgsign": "false",
    "gc.auto": "0",
    "advice.detachedHead": "false",
}
_PINNED = {
    "GIT_AUTHOR_NAME": IDENTITY_NAME,
    "GIT_AUTHOR_EMAIL": IDENTITY_EMAIL,
    "GIT_AUTHOR_DATE": IDENTITY_DATE,
    "GIT_COMMITTER_NAME": IDENTITY_NAME,
    "GIT_COMMITTER_EMAIL": IDENTITY_EMAIL,
    "GIT_COMMITTER_DATE": IDENTITY_DATE,
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
}


class GitError(Exception):
    """A git command ended with a status other than 0; the message is what git said."""

    def __init__(self, arguments: Sequence[str], status: int, said: str) -> None:
        super().__init__(said or f"git {arguments[0]} ended with status {status}")
        self.status = status


@dataclass(frozen=True)
class TreeEntry:
    """One blob of a commit's tree."""

    path: PurePosixPath
    mode: str
    blob: str


@contextlib.contextmanager
def no_git_environment() -> Iterator[None]:
    """Hide every inherited `GIT_*` variable for the length of the block."""
    inherited = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("GIT_")}
    try:
        yield
    finally:
        os.environ.update(inherited)


def run_git(
    directory: Path, *arguments: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None
) -> bytes:
    """Run one git command in `directory` and return its stdout.

    Raises:
        GitError: git answered with another status than 0.
        SourceError: git is not installed.
    """
    try:
        import git
    except ImportError as error:
        raise SourceError(f"git cannot be used: {str(error).splitlines()[0]}", hint="install git") from None
    command = ["git"]
    for name, value in _SETTINGS.items():
        command += ["-c", f"{name}={value}"]
    with no_git_environment(), tempfile.TemporaryFile() as sent:
        sent.write(stdin)
        sent.seek(0)
        status, stdout, stderr = git.Git(directory).execute(
            [*command, *arguments],
            istream=sent,
            with_extended_output=True,
            with_exceptions=False,
            stdout_as_string=False,
            strip_newline_in_stdout=False,
            env={**_PINNED, **(environment or {})},
        )
    if status:
        raise GitError(arguments, int(status), stderr.strip())
    if not isinstance(stdout, bytes):
        raise TypeError("GitPython returned text for bytes")
    return stdout


def git_line(directory: Path, *arguments: str) -> str:
    """Run one git command and return its output as one stripped string.

    Raises:
        GitError: git answered with another status than 0.
    """
    return run_git(directory, *arguments).decode(errors="surrogateescape").strip()


def git_succeeds(directory: Path, *arguments: str) -> bool:
    """Tell whether a git command ends with status 0."""
    try:
        run_git(directory, *arguments)
    except GitError:
        return False
    return True


def list_tree(directory: Path, commit: str, under: PurePosixPath) -> tuple[TreeEntry, ...]:
    """Return the regular files below `under` in a commit, in git's order.

    Raises:
        GitError: there is no such commit.
    """
    listing = run_git(directory, "ls-tree", "-r", "-z", "--full-tree", commit, "--", f"{under}/")
    entries = []
    for record in listing.split(b"\0"):
        if not record:
            continue
        facts, _, name = record.partition(b"\t")
        mode, kind, blob = facts.decode().split(" ")
        if kind == "blob" and mode.startswith("100"):
            entries.append(TreeEntry(PurePosixPath(os.fsdecode(name)), mode, blob))
    return tuple(entries)


def read_blobs(directory: Path, blobs: Sequence[str]) -> tuple[bytes, ...]:
    """Return the content of many blobs with one `git cat-file --batch`.

    Raises:
        GitError: one of them is missing.
    """
    if not blobs:
        return ()
    asked = "".join(f"{blob}\n" for blob in blobs).encode()
    answer = run_git(directory, "cat-file", "--batch", stdin=asked)
    contents, begin = [], 0
    for blob in blobs:
        end = answer.index(b"\n", begin)
        facts = answer[begin:end].split(b" ")
        if len(facts) != 3:
            raise GitError(("cat-file",), 1, f"object {blob} is missing")
        begin = end + 1 + int(facts[2])
        contents.append(answer[end + 1 : begin])
        begin += 1
    return tuple(contents)
