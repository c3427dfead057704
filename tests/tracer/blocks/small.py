"""A small tree whose blocks take what enters them, and the same with lines changed."""

from pathlib import Path, PurePosixPath

from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tracer.blocks.hand_in import BlockReader
from auxtap.tracer.blocks.handing import PLAIN_LIST, Collector, HandIn, HandInReading
from auxtap.tracer.flow.classes import ClassIndex

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures/blocks"
MODEL, STAGED = SRT_ROOT / "models/small.py", SRT_ROOT / "models/staged.py"
COLLECTORS = SRT_ROOT / "layers/collectors.py"
MOVER = SRT_ROOT / "layers/mover.py"
BOUNDARY = SRT_ROOT / "layers/layer_boundary"
STAGE, STREAM = BOUNDARY / "stage.py", BOUNDARY / "residual/stream.py"
_PLACES = {
    "model": MODEL,
    "staged": STAGED,
    "mover": MOVER,
    "collectors": COLLECTORS,
    "stage": STAGE,
    "stream": STREAM,
    "access": BOUNDARY / "residual/access.py",
}
COPYING = Collector(copies=True, takes=frozenset({"capture"}), finish=frozenset())
BY_RESIDUAL = HandIn(
    file=MODEL,
    class_name="SmallModel",
    line=1,
    keyword="collected",
    method=None,
    collector=PLAIN_LIST,
    hidden="state",
    residual="residual",
    others=("positions", "batch"),
)
BY_STREAM = HandIn(
    file=STAGED,
    class_name="StagedModel",
    line=1,
    keyword="collected",
    method=None,
    collector=COPYING,
    hidden="#1",
    residual=None,
    others=("#0", "#2"),
)


def small_tree(edits: dict[PurePosixPath, tuple[str, str]] | None = None) -> SourceTree:
    files = {path: (FIXTURES / f"{name}.source.py").read_bytes() for name, path in _PLACES.items()}
    for path, (old, new) in (edits or {}).items():
        text = files[path].decode()
        assert text.count(old) == 1, (path, old)
        files[path] = text.replace(old, new).encode()
    return SourceTree("0.0", "small", "", files)


def read(hand_in: HandIn, edits: dict[PurePosixPath, tuple[str, str]] | None = None) -> HandInReading:
    return BlockReader(ClassIndex(small_tree(edits))).read(hand_in)
