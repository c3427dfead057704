"""Answer one request: a result, many results, or an error, as marked lines on stdout."""

import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from auxtap.core.errors import AuxtapError, ExitCode, ServerError

# What extraction needs and every SGLang brings along; it brings msgspec from 0.4.8 on.
NEEDED = ("httpx", "msgspec", "numpy", "psutil")


def serve_request(request: "Mapping[str, Any]", stdin: BinaryIO, launcher: str) -> None:
    """Answer `request`, whose payload follows on `stdin`."""
    os.umask(0o077)
    payload = stdin.read(request["n_bytes"])
    try:
        _require_packages()
        from auxtap.node.agent.commands import COMMANDS, Call
        from auxtap.node.agent.node_folder import NodeFolder

        folder = NodeFolder(Path(request["root"]).expanduser())
        result = COMMANDS[request["command"]](Call(folder, request["arguments"], payload, request, launcher))
        if isinstance(result, Iterator):
            for each in result:
                _reply({"result": each})
        else:
            _reply({"result": result})
    except BrokenPipeError:
        # Whoever watched has gone; what runs goes on.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except AuxtapError as error:
        _reply({"error": error.message, "hint": error.hint, "code": int(error.exit_code)})
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _reply({"error": f"on the node: {where}{error.strerror or error}", "code": int(ExitCode.SERVER)})
    except Exception:
        lines = traceback.format_exc().strip().splitlines()
        traceback.print_exc()
        _reply({"error": f"the agent itself failed: {lines[-1]}", "hint": lines[-3].strip(), "code": int(ExitCode.BUG)})


def _require_packages() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ServerError(
            f"{sys.executable} on the node lacks {', '.join(missing)}",
            hint="node.python in the profile must be the Python whose packages serve SGLang; what it lacks besides, "
            "pip installs",
        )


def _reply(value: object) -> None:
    sys.stdout.write("\x1eauxtap " + json.dumps(value) + "\n")
    sys.stdout.flush()
