"""Python imports this at the start of every process of the CPU engine, children included.

Active only with `AUXTAP_CPU_SHIM=1`; a `sitecustomize` that this one hides is run after it.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent


def install_shim() -> None:
    """Install the stub importer and the hooks."""
    import aux_hooks
    import aux_stubs

    aux_stubs.install()
    aux_hooks.install()


def run_hidden_sitecustomize() -> None:
    """Run the `sitecustomize` that Python would have found without this folder."""
    others = [entry for entry in sys.path if Path(entry).resolve() != HERE]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if os.environ.get("AUXTAP_CPU_SHIM") == "1":
    install_shim()
run_hidden_sitecustomize()
