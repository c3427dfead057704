"""Make the workplace of a node whose Python has what every SGLang brings, and a stand-in for SGLang."""

import json
import struct
import subprocess
from pathlib import Path

from auxtap.core.source_tree import PACKAGE_ROOT
from auxtap.tests.node.conftest import TestNode, Workplace, free_port, quoted
from auxtap.tests.node.fake_sglang import LAUNCH_SERVER
from auxtap.tests.shaped import make_checkout, shaped_files, write_files


def make_bare_workplace(node: TestNode, python: Path, name: str) -> Workplace:
    """Put a stand-in for SGLang and a model's outside where the node's user can read them."""
    place = node.folder / name
    place.mkdir(mode=0o755)
    files = {**shaped_files(), PACKAGE_ROOT / "launch_server.py": LAUNCH_SERVER.encode()}
    make_checkout(place / "here", files)
    write_files(place / 'it\'s "SGLang" $HOME', files)
    model = place / "a model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"num_hidden_layers": 8, "architectures": ["Fake"]}))
    write_shard(model / "model.safetensors")
    root = node.folder / f"{name} 'root'"
    root.mkdir(mode=0o700)
    node.own(root)
    subprocess.run(["chmod", "-R", "a+rX", str(place)], check=True)
    return Workplace(node, place / 'it\'s "SGLang" $HOME', python, model, root)


def write_shard(path: Path, n_bytes: int = 64) -> None:
    """Write a safetensors file of one tensor."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [n_bytes], "data_offsets": [0, n_bytes]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(n_bytes))


def tables(workplace: Workplace, **more: str) -> dict[str, str]:
    """Return the tables of a profile for a bare node."""
    source = workplace.sglang.parent / "here"
    node = (
        f"root = {quoted(workplace.root)}\npython = {quoted(workplace.python)}\nsglang = {quoted(workplace.sglang)}\n"
        f"patch_source = {quoted(source)}"
    )
    server = f"port = {free_port()}\nready_timeout_s = 60"
    return {"node": node, "server": server, "environment": 'FAKE_DELAY_S = "0.02"', **more}
