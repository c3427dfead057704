"""Packages that some tests need beside the tool's own, each set in a folder of its own below the cache, made once."""

import subprocess
import sys
from pathlib import Path

from auxtap.core.cache import CacheLayout
from auxtap.core.files import held_lock, sha256_file


def install_packages(requirements: Path, cache: CacheLayout) -> Path:
    """Return the folder with what a pinned list names; it is for PYTHONPATH."""
    name = requirements.stem.removesuffix("_requirements")
    version = f"py{sys.version_info.major}.{sys.version_info.minor}"
    folder = cache.root / "tests" / f"{name}-{version}-{sha256_file(requirements)[:16]}"
    with held_lock(folder.with_suffix(".lock")):
        if not (folder / ".whole").exists():
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
            subprocess.run([*install, "-r", str(requirements)], check=True, timeout=600)
            (folder / ".whole").touch()
    return folder
