"""Run an agent file: given to the node's Python on the command line, it reads the request from its stdin.

It must stay small, stand alone, and run on Python 3.10: it is what checks the agent file before a byte of it is run.
"""

import hashlib
import json
import os
import re
import sys
import tempfile


def launch() -> None:
    """Install an agent file, or check and run the one that the request names."""
    stdin = sys.stdin.buffer
    request = json.loads(stdin.readline())
    if sys.version_info < (3, 10):  # noqa: UP036 - the node's Python is not ours to choose
        reply({"error": "the node's Python is " + sys.version.split()[0] + ", older than 3.10", "code": 6})
        return
    digest = request["agent"]
    folder = os.path.join(os.path.expanduser(request["root"]), "agent")
    path = os.path.join(folder, digest + ".pyz")
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise ValueError("no digest")
    if request["command"] == "install":
        install(folder, path, digest, stdin.read(request["n_bytes"]))
        return
    try:
        with open(path, "rb") as file:
            whole = hashlib.sha256(file.read()).hexdigest() == digest
    except OSError:
        whole = False
    if not whole:
        reply({"missing": digest})
        return
    sys.dont_write_bytecode = True
    sys.path.insert(0, path)
    from auxtap.node.agent.main import serve_request

    serve_request(request, stdin, launcher=request["launcher"])


def install(folder: str, path: str, digest: str, data: bytes) -> None:
    """Publish the agent file under its digest, whole or not at all."""
    if hashlib.sha256(data).hexdigest() != digest:
        reply({"error": "the agent arrived damaged", "code": 6})
        return
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        reply({"error": "cannot write " + folder + ": " + (error.strerror or str(error)), "code": 6})
        return
    reply({"result": {"installed": digest}})


def reply(value: object) -> None:
    """Answer with one line that no shell's greeting can be mistaken for."""
    sys.stdout.write("\x1eauxtap " + json.dumps(value) + "\n")
    sys.stdout.flush()
