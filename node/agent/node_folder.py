"""Where the agent keeps what it makes, and who works there at the moment."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from auxtap.core.errors import ServerError
from auxtap.core.files import held_lock, sha256_bytes


@dataclass(frozen=True)
class NodeFolder:
    """The agent's folder on the node; everything below it is ours."""

    root: Path

    @property
    def trees(self) -> Path:
        """Patched trees and their records."""
        return self.root / "trees"

    @property
    def datasets(self) -> Path:
        """Datasets that were sent, by digest."""
        return self.root / "datasets"

    @property
    def logs(self) -> Path:
        """Logs of servers and extractions."""
        return self.root / "logs"

    @property
    def bytecode(self) -> Path:
        """Bytecode of served trees."""
        return self.root / "bytecode"

    @property
    def server_record(self) -> Path:
        """The one server that runs for this folder, or ran last."""
        return self.root / "server.json"

    @property
    def server_launch(self) -> Path:
        """All that it takes to start that server again."""
        return self.root / "server-launch.json"

    def run_record(self, store: str) -> Path:
        """The extraction into a store that runs, or ran last."""
        return self.root / "runs" / f"{sha256_bytes(store.encode())[:16]}.json"

    @contextlib.contextmanager
    def alone(self) -> "Iterator[None]":
        """Keep other calls of the agent from starting or stopping anything meanwhile."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            with held_lock(self.root / ".lock"):
                yield
        except OSError as error:
            raise ServerError(f"cannot use {self.root} on the node: {error.strerror or error}") from None
