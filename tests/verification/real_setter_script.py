"""Run SGLang's own setters on ids, in an engine's environment: module, class, setter and ids in, layers out.

The objects are of the real classes and were never built: a setter needs only its list, stage and number of blocks.
"""

import importlib
import json
import sys
from types import SimpleNamespace

N_BLOCKS = 61


def stand_in(kind):
    """Return an object of a model class with as much in it as a setter touches."""
    made = object.__new__(kind)
    group = SimpleNamespace(is_last_rank=True, is_first_rank=True)
    backbone = SimpleNamespace(layers_to_capture=None, layers=[SimpleNamespace() for _ in range(N_BLOCKS)])
    made.__dict__.update(pp_group=group, config=SimpleNamespace(num_hidden_layers=N_BLOCKS), model=backbone)
    return made


def chosen(module, name, setter, ids):
    """Return the layers that a setter of a class chooses; a wrapper holds DeepSeek's class, as Kimi-K2.5 does."""
    model = stand_in(getattr(importlib.import_module(f"sglang.srt.models.{module}"), name))
    head = model
    if module == "kimi_k25":
        head = stand_in(importlib.import_module("sglang.srt.models.deepseek_v2").DeepseekV3ForCausalLM)
        model.__dict__["language_model"] = head
    getattr(model, setter)(ids)
    return sorted(head.model.layers_to_capture)


if __name__ == "__main__":
    print(json.dumps([chosen(*asked) for asked in json.load(sys.stdin)]))
