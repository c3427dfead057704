"""Blocks of released trees, as they are and with lines changed."""

import functools
from pathlib import PurePosixPath

import libcst as cst
import libcst.matchers as m
import pytest

from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tests.tracer.releases import release_tree
from auxtap.tracer.blocks.collectors import read_collector
from auxtap.tracer.blocks.hand_in import BlockReader
from auxtap.tracer.blocks.handing import PLAIN_LIST, Collector, HandIn, HandInReading
from auxtap.tracer.flow.classes import ClassIndex
from auxtap.tracer.report.readings import SourceLine
from auxtap.tracer.source.walk import find

MODELS = SRT_ROOT / "models"
COMMUNICATOR = SRT_ROOT / "layers/communicator.py"
STAGE = SRT_ROOT / "layers/layer_boundary/stage.py"
GATHERED = "captured_last_layer_outputs"
# Release, model file, backbone, keyword, method, class of the collector, what else the block is given.
CASES = [
    ("0.5.9", "qwen2_moe", "Qwen2MoeModel", GATHERED, None, ""),
    ("0.5.9", "qwen3_next", "Qwen3NextModel", GATHERED, None, ""),
    ("0.5.14", "deepseek_v2", "DeepseekV2Model", GATHERED, None, ""),
    ("0.5.14", "minimax_m2", "MiniMaxM2Model", GATHERED, None, ""),
    ("0.5.14", "qwen3_5", "Qwen3_5ForCausalLM", GATHERED, None, ""),
    ("0.5.23", "deepseek_v2", "DeepseekV2Model", GATHERED, None, "AuxHiddenStatePacker"),
    ("0.5.23", "llama", "LlamaModel", "capture_output", "capture", "AuxHiddenStateList"),
    ("0.5.23", "qwen3", "Qwen3Model", "capture_output", "capture", "AuxHiddenStateList"),
    ("0.5.23", "qwen3_5", "Qwen3_5ForCausalLM", GATHERED, None, "AuxHiddenStateList"),
    ("0.5.23", "mimo_v2", "MiMoV2Model", GATHERED, None, "AuxHiddenStatePacker"),
    ("0.5.23", "qwen2_moe", "Qwen2MoeModel", GATHERED, None, "AuxHiddenStateList"),
]
_SHARED = {
    COMMUNICATOR,
    STAGE,
    *(MODELS / f"{case[1]}.py" for case in CASES),
    MODELS / "qwen2.py",
    MODELS / "qwen3_moe.py",
}
Case = tuple[str, str, str, str, str | None, str]


@functools.lru_cache(maxsize=2)
def lean_index(release: str) -> ClassIndex:
    """Return a released tree with few models, so that many changed copies of it can be read."""
    tree = release_tree(release)
    files = {path: data for path, data in tree.files.items() if MODELS not in path.parents or path in _SHARED}
    return ClassIndex(SourceTree(tree.release, tree.origin, tree.commit, files))


def changed(index: ClassIndex, path: PurePosixPath, data: bytes) -> ClassIndex:
    """Return the tree with one file changed; the others need not be parsed again."""
    tree = index.tree
    kept = {known: index.source(known) for known in tree.files if known in _SHARED and known != path}
    files = {**tree.files, path: data}
    return ClassIndex(SourceTree(tree.release, tree.origin, tree.commit, files), _sources=kept)


def read(index: ClassIndex, case: Case) -> HandInReading:
    _, model, backbone, keyword, method, collecting = case
    path = MODELS / f"{model}.py"
    reader = BlockReader(index)
    collector = PLAIN_LIST
    if collecting:
        found = read_collector(reader.names, path, collecting, SourceLine(path, 1, backbone, ""))
        assert isinstance(found, Collector), found
        collector = found
    old = STAGE not in index.tree.files
    hand_in = HandIn(
        file=path,
        class_name=backbone,
        line=1,
        keyword=keyword,
        method=method,
        collector=collector,
        hidden="hidden_states",
        residual="residual" if old else None,
        # What a picture adds keeps the branch alive that takes the state before it.
        others=("positions", "forward_batch", *(("post_residual_addition",) if model == "qwen3" else ())),
    )
    return reader.read(hand_in)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def test_released_blocks_take_what_enters_them(case: Case) -> None:
    reading = read(ClassIndex(release_tree(case[0])), case)
    assert reading.objections == ()
    assert {line.file for line in reading.inside} <= {COMMUNICATOR, STAGE}
    assert reading.inside


def method(module: cst.Module, class_name: str, name: str) -> cst.FunctionDef:
    owners = find(module, cst.ClassDef, m.ClassDef(name=m.Name(class_name)))
    return next(item for owner in owners for item in find(owner, cst.FunctionDef, m.FunctionDef(name=m.Name(name))))


def taking(function: cst.FunctionDef, collector: str) -> list[cst.Call]:
    """Return the calls by which a collector takes, or the callback is called."""
    by_method = m.Call(func=m.Attribute(value=m.Name(collector), attr=m.Name("append") | m.Name("capture")))
    return list(find(function, cst.Call, by_method | m.Call(func=m.Name(collector))))


def wrong_values(function: cst.FunctionDef, collector: str) -> list[cst.FunctionDef]:
    """Return the function with another value taken, once for each call and each way to go wrong."""
    made = []
    for call in taking(function, collector):
        value = call.args[0]
        for wrong in ("({} * 2)", "{}.half()", "{}.view(-1)", "self.norm({})", "torch.zeros_like({})", "hidden_states"):
            text = cst.Module([]).code_for_node(value.value)
            # At the head of the stack the state is the value.
            if text == "value" and wrong == "hidden_states" and len(call.args) == 1:
                continue
            changed_value = value.with_changes(value=cst.parse_expression(wrong.format(text)))
            made.append(function.deep_replace(value, changed_value))
    return [item for item in made if isinstance(item, cst.FunctionDef)]


def shaken(function: cst.FunctionDef, collector: str) -> list[cst.FunctionDef]:
    """Return the function with its state written over before anything else, and with the test turned."""
    body = function.body
    assert isinstance(body, cst.IndentedBlock)
    made = []
    for text in (
        "hidden_states.mul_(2)",
        "hidden_states += 1",
        "hidden_states = hidden_states + 1",
        "hidden_states[0] = 0",
        f"{collector} = None",
    ):
        line = cst.parse_statement(text)
        made.append(function.with_changes(body=body.with_changes(body=[line, *body.body])))
    for test in find(function, cst.If):
        if collector in cst.Module([]).code_for_node(test.test) and taking_below(test, collector):
            turned = cst.UnaryOperation(cst.Not(), cst.ensure_type(cst.parse_expression("(x)"), cst.Name))
            inner = test.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            made.append(function.deep_replace(test, test.with_changes(test=turned.with_changes(expression=inner))))  # type: ignore[arg-type]
    return made


def taking_below(test: cst.If, collector: str) -> bool:
    called = m.Call(func=m.Attribute(value=m.Name(collector))) | m.Call(func=m.Name(collector))
    return any(True for _ in find(test.body, cst.Call, called))


@pytest.mark.parametrize(
    ("case", "path", "scope", "collector"),
    [
        (CASES[0], COMMUNICATOR, ("LayerCommunicator", "prepare_attn_and_capture_last_layer_outputs"), GATHERED),
        (CASES[2], COMMUNICATOR, ("LayerCommunicator", "prepare_attn_and_capture_last_layer_outputs"), GATHERED),
        (CASES[5], STAGE, ("StageBoundary", "_prepare_attention"), "capture_gathered"),
        (CASES[7], STAGE, ("StageBoundary", "_prepare_attention"), "capture"),
    ],
    ids=["0.5.9", "0.5.14", "0.5.23-gathered", "0.5.23-callback"],
)
def test_another_value_or_way_is_objected_to(
    case: Case, path: PurePosixPath, scope: tuple[str, str], collector: str
) -> None:
    index = lean_index(case[0])
    module = cst.parse_module(index.tree.files[path])
    function = method(module, *scope)
    for wrong in [*wrong_values(function, collector), *shaken(function, collector)]:
        code = module.deep_replace(function, wrong)
        assert isinstance(code, cst.Module)
        assert read(changed(index, path, code.bytes), case).objections, code.code_for_node(wrong)


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[5], CASES[6]], ids=lambda case: f"{case[0]}-{case[1]}")
def test_a_block_that_does_otherwise_is_objected_to(case: Case) -> None:
    """The collector is dropped, kept back, or handed over behind what changes the state."""
    release, model, backbone, keyword, _, _ = case
    index = lean_index(release)
    path = MODELS / f"{model}.py"
    module = cst.parse_module(index.tree.files[path])
    block = method(module, BLOCKS[backbone], "forward")
    handed = next(item for item in find(block, cst.Arg, m.Arg(value=m.Name(keyword))))
    dropped = block.deep_replace(handed, handed.with_changes(value=cst.Name("None")))
    for wrong in (dropped, *shaken(block, keyword), *before(block)):
        assert isinstance(wrong, cst.FunctionDef)
        code = module.deep_replace(block, wrong)
        assert isinstance(code, cst.Module)
        assert read(changed(index, path, code.bytes), case).objections, code.code_for_node(wrong)


BLOCKS = {
    "Qwen2MoeModel": "Qwen2MoeDecoderLayer",
    "DeepseekV2Model": "DeepseekV2DecoderLayer",
    "LlamaModel": "LlamaDecoderLayer",
}


def before(block: cst.FunctionDef) -> list[cst.FunctionDef]:
    """Return the block with its state changed before it is handed over."""
    body = block.body
    assert isinstance(body, cst.IndentedBlock)
    changes = (
        "hidden_states = self.input_layernorm(hidden_states)",
        "hidden_states = hidden_states * 2",
        "hidden_states = self.self_attn(hidden_states)",
        "for _ in range(2): hidden_states = hidden_states + 1",
    )
    return [
        block.with_changes(body=body.with_changes(body=[cst.parse_statement(text), *body.body])) for text in changes
    ]
