"""What becomes of a model class: captured by SGLang's own setter, by the tap, by a line in its loop, or refused."""

from pathlib import PurePosixPath

from auxtap.core.source_tree import SRT_ROOT
from auxtap.rewriters.patch.table import backbone_table
from auxtap.tests.shaped import LLAMA, MIXTRAL, fixture, shaped_tree
from auxtap.tracer.reading.trees import Readings
from auxtap.tracer.report.readings import ClassFate

MODELS = SRT_ROOT / "models"
HEAD = b"""

class LlamaForCausalLM:
    def __init__(self, config):
        self.model = LlamaModel(config)
        self.capture_aux_hidden_states = False

    def set_eagle3_layers_to_capture(self, layers):
        self.model.layers_to_capture = layers


class LlamaForCausalLMEagle:
    pass


EntryClass = [LlamaForCausalLM, LlamaForCausalLMEagle]
"""
WRAPPER = b"""
from sglang.srt.models.llama import LlamaForCausalLM, LlamaModel


class SeeingForConditionalGeneration:
    def __init__(self, config):
        self.tower = VisionTower(config)
        self.language_model = LlamaForCausalLM(config)


class BareForCausalLM:
    def __init__(self, config):
        self.model = LlamaModel(config)


class EmptyForCausalLM:
    def __init__(self, config):
        self.layers = []


EntryClass = [SeeingForConditionalGeneration, BareForCausalLM, EmptyForCausalLM]
"""
LOOPED = b"\n\nclass MixtralForCausalLM:\n    def __init__(self, c):\n        self.model = MixtralModel(c)\n"
LOOPED += b"\n\nEntryClass = MixtralForCausalLM\n"


def fates(files: dict[PurePosixPath, bytes]) -> dict[str, ClassFate]:
    return {fate.name: fate for fate in Readings().of(shaped_tree(files)).fates}


def test_each_way_of_a_class() -> None:
    found = fates(
        {
            LLAMA: fixture("stage", "if_else.before").partition(b"\n\nclass LlamaForCausalLM")[0] + HEAD,
            MODELS / "wrapper.py": WRAPPER,
            MIXTRAL: fixture("loop", "sum.before") + LOOPED,
            MODELS / "stable.py": fixture("loop", "other_norm.refused").replace(b"Mixtral", b"Stable")
            + LOOPED.replace(b"Mixtral", b"Stable"),
        }
    )
    ways = {name: (fate.way, fate.backbone) for name, fate in found.items()}
    assert ways["LlamaForCausalLM"] == ("native", "LlamaModel")
    assert ways["SeeingForConditionalGeneration"] == ("arm", "LlamaModel")
    assert ways["MixtralForCausalLM"] == ("loop", "MixtralModel")
    assert found["MixtralForCausalLM"].reason == "--model mixtral"
    assert found["LlamaForCausalLMEagle"].reason == "a draft model is never the served one"
    assert found["BareForCausalLM"].reason == "nothing in it unpacks what LlamaModel captures"
    assert found["EmptyForCausalLM"].reason.startswith("no loop over decoder blocks")
    assert found["StableForCausalLM"].reason.startswith("no norm behind the loop adds the residual")


def test_the_table_names_what_may_be_armed_and_why_the_rest_may_not() -> None:
    tree = shaped_tree({MIXTRAL: fixture("loop", "sum.before")})
    table: dict[str, dict[str, object]] = {}
    exec(backbone_table(Readings().of(tree), (), ()), table)
    assert table["CAPTURES"] == {"deepseek_v2.DeepseekV2Model": False, "llama.LlamaModel": False}
    assert table["LOOPS"] == {}
    assert table["REFUSED"] == {"mixtral.MixtralModel": "write the patch with --model mixtral"}
