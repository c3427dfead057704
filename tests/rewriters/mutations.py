"""Changes of what real releases capture: by value, order, place, condition and storage, each in one or two lines.

What becomes of each is not written here: the test patches the changed tree and runs what it patched.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from auxtap.core.source_tree import MODELS_ROOT, SRT_ROOT
from auxtap.tests.rewriters import changed_blocks as blocks
from auxtap.tests.rewriters import changed_forwards as forwards
from auxtap.tests.rewriters.changed_classes import changes_around
from auxtap.tests.rewriters.changes import both, end, lines, swap
from auxtap.tests.rewriters.drifts import Change, within

HARMLESS = "harmless"
COMMUNICATOR = SRT_ROOT / "layers/communicator.py"
COLLECTORS = SRT_ROOT / "layers/aux_hidden_states.py"
BOUNDARY = SRT_ROOT / "layers/layer_boundary/stage.py"
# What the harness builds of a file: the backbone and the class that hands its states to the logits processor.
MODELS = {
    "llama": ("LlamaModel", "LlamaForCausalLM"),
    "qwen2": ("Qwen2Model", "Qwen2ForCausalLM"),
    "qwen2_moe": ("Qwen2MoeModel", "Qwen2MoeForCausalLM"),
    "deepseek_v2": ("DeepseekV2Model", "DeepseekV2ForCausalLM"),
    "gpt_oss": ("GptOssModel", "GptOssForCausalLM"),
    "glm4_moe": ("Glm4MoeModel", "Glm4MoeForCausalLM"),
}


@dataclass(frozen=True)
class Mutation:
    """A change of one file of a release whose `model` is then patched and run."""

    kind: str
    name: str
    release: str
    model: str
    change: Change
    path: PurePosixPath

    @property
    def id(self) -> str:
        return f"{self.release}-{self.model}-{self.name}"


def _of_sums(release: str, model: str, part: int = 0, parts: int = 1) -> Iterator[Mutation]:
    """Yield every `parts`-th of the changes of a forward that appends the sum."""
    backbone = MODELS[model][0]
    inner: dict[tuple[str, str], Change] = {}
    inner |= {("value", name): swap(forwards.SUM, text) for name, text in forwards.VALUES.items()}
    inner |= {("round", name): lines(forwards.TEST, text) for name, text in forwards.BEFORE.items()}
    at_layer = re.escape(forwards.LAYER)
    inner |= {("before the block", name): lines(at_layer, text, behind=True) for name, text in forwards.BETWEEN.items()}
    inner |= {("behind the exit", name): lines(forwards.LAST, text) for name, text in forwards.BEHIND.items()}
    inner |= {("condition", name): swap(forwards.TEST, text) for name, text in forwards.TESTS.items()}
    inner |= {("loop", name): forwards.other_loop(text) for name, text in forwards.LOOPS.items()}
    inner |= {("layer", name): swap(forwards.LAYER, text) for name, text in forwards.LAYERS.items()}
    inner |= {("shape", name): change for name, change in forwards.SHAPES.items()}
    inner |= {(HARMLESS, name): change for name, change in forwards.HARMLESS.items()}
    found = {key: within(f"{backbone}.forward", change) for key, change in inner.items()}
    found |= {("class", name): _member(backbone, text) for name, text in forwards.MEMBERS.items()}
    found |= {("class", name): change for name, change in changes_around(backbone).items()}
    for number, ((kind, name), change) in enumerate(found.items()):
        if number % parts == part:
            yield Mutation(kind, name, release, model, change, MODELS_ROOT / f"{model}.py")


def _member(backbone: str, text: str) -> Change:
    """Give the backbone's class another member."""
    indented = "\n".join(f"    {line}" if line else "" for line in text.split("\n"))
    return both(lines(rf"class {backbone}\(", indented, behind=True), end(forwards.TURNED))


def _of(
    kind: str, release: str, model: str, scope: str, changes: Mapping[str, Change], path: PurePosixPath | None = None
) -> Iterator[Mutation]:
    for name, change in changes.items():
        made = within(scope, change) if scope else change
        yield Mutation(kind, name, release, model, made, path or MODELS_ROOT / f"{model}.py")


def all_mutations() -> tuple[Mutation, ...]:
    """Return every change, in order."""
    return (
        *_of_sums("0.5.9", "llama"),
        *_of_sums("0.5.14", "llama", 1, 4),
        *_of_sums("0.5.9", "gpt_oss", 2, 4),
        *_of_sums("0.5.17", "glm4_moe", 3, 4),
        *_of("gather", "0.5.9", "deepseek_v2", "DeepseekV2Model.forward", blocks.DEEPSEEK),
        *_of("block", "0.5.9", "qwen2_moe", "Qwen2MoeDecoderLayer.forward", blocks.BLOCKS),
        *_of("two ways", "0.5.9", "qwen2_moe", "Qwen2MoeDecoderLayer.forward", blocks.FORKED),
        *_of("block", "0.5.14", "deepseek_v2", "DeepseekV2DecoderLayer.forward", blocks.BLOCKS),
        *_of("block", "0.5.17", "qwen2_moe", "Qwen2MoeDecoderLayer.forward", blocks.BLOCKS),
        *_of("in what a block calls", "0.5.9", "qwen2_moe", "", blocks.IN_COMMUNICATOR, COMMUNICATOR),
        *_of("in what a block calls", "0.5.14", "deepseek_v2", "", blocks.IN_COMMUNICATOR, COMMUNICATOR),
        *_of("handing in", "0.5.9", "qwen2_moe", "Qwen2MoeModel.forward", blocks.CALLS),
        *_of("handing in", "0.5.17", "deepseek_v2", "DeepseekV2Model.forward", blocks.CALLS),
        *_of("block", "0.5.23", "llama", "LlamaDecoderLayer.forward", blocks.BOUNDARIES),
        *_of("handing in", "0.5.23", "llama", "LlamaModel.forward", blocks.COLLECTING),
        *_of("handing in", "0.5.23", "qwen2", "Qwen2Model.forward", blocks.COLLECTING),
        *_of("in what a block calls", "0.5.23", "llama", "", blocks.IN_COLLECTOR, COLLECTORS),
        *_of(
            "in what a block calls", "0.5.23", "llama", "StageBoundary._prepare_attention", blocks.IN_BOUNDARY, BOUNDARY
        ),
    )
