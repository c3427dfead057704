"""Which attribute is the final norm, and when that is not to be told."""

import textwrap

import pytest

from auxtap.tests.tracer.reading.sources import read_one

LOOP = """for i in range(self.start_layer, self.end_layer):
    if i in self.layers_to_capture:
        states.append(hidden + residual)
    hidden, residual = self.layers[i](hidden, residual)
"""


def find(binding: str, behind: str, inside: str = "") -> str | None:
    """Return the norm of a class that binds `binding` and runs `behind` after its loop."""
    source = f"class Model:\n    def __init__(self):\n{textwrap.indent(binding or 'pass', ' ' * 8)}\n"
    source += "    def forward(self, hidden, residual, forward_batch):\n        states = []\n"
    source += textwrap.indent(LOOP + textwrap.indent(inside, "    "), " " * 8) + "\n"
    source += textwrap.indent(behind, " " * 8) + "\n        return hidden, states\n"
    reading = read_one(source.replace("states", "aux_hidden_states"))
    assert not reading.objections
    return reading.norm


RMS, LAYER = "self.norm = RMSNorm(8)", "self.final_layernorm = nn.LayerNorm(8)"
STAGED = "if last:\n    self.norm_f = RMSNorm(8)\nelse:\n    self.norm_f = PPMissingLayer()"


@pytest.mark.parametrize(
    ("binding", "behind", "found"),
    [
        (RMS, "hidden, _ = self.norm(hidden, residual)", "norm"),
        (RMS, "if whole:\n    hidden = self.norm(hidden)\nelse:\n    hidden, _ = self.norm(hidden, residual)", "norm"),
        (LAYER, "hidden = self.final_layernorm(hidden)", "final_layernorm"),
        (STAGED, "hidden, _ = self.norm_f(hidden, residual)", "norm_f"),
        ("", "hidden, _ = self.norm(hidden, residual)", "norm"),
        (RMS, "hidden = residual_batch.final_norm(hidden, batch, self.norm)", "norm"),
        ("", "hidden = residual_batch.norm(hidden, batch, self.norm, skip_empty=True)", "norm"),
    ],
)  # fmt: skip
def test_a_norm_that_a_hook_sees(binding: str, behind: str, found: str) -> None:
    assert find(binding, behind) == found


@pytest.mark.parametrize(
    ("binding", "behind"),
    [
        ("", "rows = 0"),
        (RMS, "scores = self.head(hidden)"),
        (LAYER, "hidden, _ = self.final_layernorm(hidden, residual)"),
        (RMS, "hidden, _ = self.norm(hidden, residual, post_residual_addition=more)"),
        (RMS, "hidden, _ = self.norm.forward_with_allreduce_fusion(hidden, residual)"),
        (RMS, "hidden = residual_batch.final_norm(hidden, batch, self.norm, finalize_norm=self.fusion)"),
        (f"{RMS}\n{LAYER}", "hidden = self.norm(hidden)\nhidden = self.final_layernorm(hidden)"),
        (RMS, "hidden, _ = self.norm(hidden, residual)\nhidden, _ = self.norm(hidden, residual, more=1)"),
    ],
)
def test_what_no_hook_sees_is_not_named(binding: str, behind: str) -> None:
    assert find(binding, behind) is None


def test_a_norm_within_the_loop_is_another() -> None:
    assert find(RMS, "rows = 0", inside="hidden = self.norm(hidden)") is None
