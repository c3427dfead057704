"""Small forwards in SGLang's shape, and what the tracer reads of them."""

from pathlib import PurePosixPath

from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tracer.reading.trees import Readings
from auxtap.tracer.report.readings import ModelReadings, Reading

MODEL = SRT_ROOT / "models/a_model.py"
# What enters each block, taken at the top of its round.
AT_THE_TOP = """
class AModel:
    def forward(self, input_ids, positions, forward_batch: ForwardBatch, pp_proxy_tensors=None):
        hidden_states = self.embed_tokens(input_ids)
        residual = None
        aux_hidden_states = []
        for i in range(self.start_layer, self.end_layer):
            if i in self.layers_to_capture:
                aux_hidden_states.append(hidden_states + residual)
            hidden_states, residual = self.layers[i](positions, hidden_states, forward_batch, residual)
        if not self.pp_group.is_last_rank:
            return PPProxyTensors({"hidden_states": hidden_states, "residual": residual})
        hidden_states, _ = self.norm(hidden_states, residual)
        if len(aux_hidden_states) == 0:
            return hidden_states
        return hidden_states, aux_hidden_states
"""
# The same states, taken where the block before ends; a stage's first one before the loop.
AT_THE_END = """
class AModel:
    def forward(self, input_ids, positions, forward_batch: ForwardBatch, pp_proxy_tensors=None):
        hidden_states = self.embed_tokens(input_ids)
        residual = None
        aux_hidden_states = []
        if self.start_layer in self.layers_to_capture:
            aux_hidden_states.append(hidden_states + residual if residual is not None else hidden_states)
        for i in range(self.start_layer, self.end_layer):
            with recorder.with_current_layer(i):
                layer = self.layers[i]
                hidden_states, residual = layer(positions, hidden_states, forward_batch, residual)
                if i + 1 in self.layers_to_capture:
                    aux_hidden_states.append(hidden_states + residual if residual is not None else hidden_states)
        return hidden_states, aux_hidden_states
"""


def read(files: dict[PurePosixPath, str] | str) -> ModelReadings:
    """Return what a tree of these files holds; a text is the one model file."""
    given = {MODEL: files} if isinstance(files, str) else files
    tree = SourceTree("0.5.9", "a test", "0" * 40, {path: text.encode() for path, text in given.items()})
    return Readings().of(tree)


def read_one(source: str) -> Reading:
    """Return the one reading of a model file."""
    (reading,) = read(source).readings
    return reading


def reason_of(source: str) -> str:
    """Return what is objected to in the one reading of a model file, and the code there; empty where nothing is."""
    return "; ".join(f"{each.reason}: {each.at.code}" for each in read_one(source).objections)
