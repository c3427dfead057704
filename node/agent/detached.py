"""Start a process that outlives its ssh session, and is on record before it does anything."""

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from auxtap.core.errors import ServerError
from auxtap.core.files import publish_json
from auxtap.serving.processes import ProcessMark, mark_process

# The child waits for a line before it becomes what it is to be. When whoever starts it dies first, the line never
# comes, the read ends, and nothing was started that no record knows of.
_WAIT_THEN_RUN = 'read -r go && exec "$@" <"$0"'


def start_detached(
    command: "Sequence[str]",
    environment: "Mapping[str, str]",
    *,
    log: Path,
    record: "Callable[[ProcessMark], None]",
    stdin: Path = Path(os.devnull),
) -> ProcessMark:
    """Start a session of its own, `record` it, and only then let it run; its output is added to `log`.

    Raises:
        ServerError: it cannot be started.
    """
    folder = log.parent
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        with log.open("ab") as output:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _WAIT_THEN_RUN, str(stdin), *command],
                env=dict(environment), cwd=folder, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        raise ServerError(f"cannot start {command[0]}: {error.strerror or error}") from None
    assert process.stdin is not None
    mark = mark_process(process.pid)
    try:
        record(mark)
        process.stdin.write(b"go\n")
        process.stdin.flush()
    finally:
        process.stdin.close()
    return mark


def read_record(path: Path) -> "dict[str, Any] | None":
    """Return a record that was published, None when there is none that can be read."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) and "process" in value else None


def write_record(path: Path, mark: ProcessMark, facts: "Mapping[str, Any]") -> None:
    """Publish a record of a process."""
    publish_json(path, {**facts, "process": mark.to_json()})
