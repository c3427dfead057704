"""Where everything that the tool makes and can make again lies."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CacheLayout:
    """Folders below one cache root; nothing here is made before it is needed."""

    root: Path

    @property
    def wheels(self) -> Path:
        """Downloaded wheels, by file name."""
        return self.root / "wheels"

    @property
    def sources(self) -> Path:
        """Local git repositories made from wheels and installed packages."""
        return self.root / "sources"

    @property
    def engines(self) -> Path:
        """Python environments that serve SGLang on the CPU, a folder a release range."""
        return self.root / "engines"

    @property
    def readings(self) -> Path:
        """What the model files of a tree hold, by a digest of them."""
        return self.root / "readings"

    @property
    def models(self) -> Path:
        """Tiny random-weight models."""
        return self.root / "models"

    @property
    def bytecode(self) -> Path:
        """Bytecode of served trees (`PYTHONPYCACHEPREFIX`)."""
        return self.root / "bytecode"

    @property
    def logs(self) -> Path:
        """Logs of servers and of bugs."""
        return self.root / "logs"
