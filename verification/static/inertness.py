"""Show that a patched tree does nothing while the switch is off."""

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

GATE_NAME = "_auxtap"
SWITCH = "AUXTAP_SPOOL"
PROBE_TIMEOUT_S = 60
_PROBE = "auxtap_probe"
_GATE_IMPORT = ast.dump(ast.parse("from sglang.srt.auxtap.gate import tap as _auxtap").body[0])
_GUARD = ast.dump(ast.parse(f"{GATE_NAME} is not None", mode="eval").body)
# Runs apart from this process: an interpreter without site-packages that sees nothing but the copied package.
_PROBE_CODE = f"""
import json, os, sys
before = set(sys.modules)
sys.path.insert(0, sys.argv[1])
import {_PROBE}.gate as gate
print(json.dumps([sorted(set(sys.modules) - before), gate.tap is None]))
"""


def called_function(statement: ast.stmt) -> str | None:
    """Return the tap function that a guarded statement calls, None for a statement of another form.

    The form is `if _auxtap is not None:` with `_auxtap.<function>(<names>)` in it: off, it makes one None test.
    """
    match statement:
        case ast.If(
            test=test,
            body=[ast.Expr(ast.Call(func=ast.Attribute(ast.Name(owner), name), args=arguments, keywords=[]))],
            orelse=[],
        ):
            names_only = all(isinstance(argument, ast.Name) for argument in arguments)
            return name if ast.dump(test) == _GUARD and owner == GATE_NAME and names_only else None
    return None


def is_gate_import(statement: ast.stmt) -> bool:
    """Tell whether a statement is the gate line."""
    return ast.dump(statement) == _GATE_IMPORT


def argument_faults(statement: ast.stmt, engine: ast.Module) -> Iterator[str]:
    """Yield what is wrong with a guarded call, held against the tap function that it calls."""
    name = called_function(statement)
    functions = {node.name: node for node in engine.body if isinstance(node, ast.FunctionDef)}
    if name is None or name not in functions:
        yield f"line {statement.lineno} is not a guarded call of a tap function"
        return
    given = len(next(node for node in ast.walk(statement) if isinstance(node, ast.Call)).args)
    wanted = functions[name].args
    simple = not (wanted.posonlyargs or wanted.kwonlyargs or wanted.vararg or wanted.kwarg or wanted.defaults)
    if not simple or given != len(wanted.args):
        yield f"line {statement.lineno} gives {name} {given} arguments; it takes {len(wanted.args)}"


def gate_faults(package: Mapping[str, bytes]) -> Iterator[str]:
    """Yield what the gate module or the package does beyond reading one variable while the switch is off.

    `package` holds the tap's files by name.
    """
    yield from _package_faults(ast.parse(package.get("__init__.py", b"pass")))
    statements = _without_text(ast.parse(package.get("gate.py", b"")).body)
    wanted = ("import os", "tap = None", f"if os.environ.get({SWITCH!r}): from . import engine as tap")
    if len(statements) != len(wanted):
        yield f"the gate has {len(statements)} statements, not {len(wanted)}"
        return
    for statement, text in zip(statements, wanted, strict=True):
        if ast.dump(statement) != ast.dump(ast.parse(text).body[0]):
            yield f"gate.py:{statement.lineno} is not `{text}`"


def _package_faults(module: ast.Module) -> Iterator[str]:
    for statement in _without_text(module.body):
        yield f"__init__.py:{statement.lineno} holds code"


def _without_text(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[:1]
    is_text = bool(first) and isinstance(first[0], ast.Expr) and isinstance(first[0].value, ast.Constant)
    return body[1:] if is_text else body


def probe_faults(package: Mapping[str, bytes]) -> Iterator[str]:
    """Import the gate in an interpreter of its own with the switch off and yield what else got imported."""
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    with tempfile.TemporaryDirectory(prefix="auxtap-probe-") as folder:
        copied = Path(folder, _PROBE)
        copied.mkdir()
        for name, data in package.items():
            (copied / PurePosixPath(name).name).write_bytes(data)
        command = [sys.executable, "-I", "-S", "-B", "-c", _PROBE_CODE, folder]
        try:
            run = subprocess.run(command, env=environment, capture_output=True, timeout=PROBE_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            yield f"importing the gate takes more than {PROBE_TIMEOUT_S} s"
            return
    if run.returncode:
        yield f"importing the gate fails: {run.stderr.decode(errors='replace').strip().splitlines()[-1:]}"
        return
    imported, is_off = json.loads(run.stdout)
    if others := sorted(set(imported) - {_PROBE, f"{_PROBE}.gate"}):
        yield f"importing the gate also imports {', '.join(others[:4])}"
    if not is_off:
        yield "the tap is on with the switch off"
