"""Choosing layers on a model, and the settings under which the tap refuses to start."""

from types import SimpleNamespace

import pytest

from auxtap.tap import arming, backbones, ranks
from auxtap.tap.arming import Backbone
from auxtap.tap.config import RefusedError, TapConfig

SAFE = {"watchdog_timeout": 300, "moe_a2a_backend": "none", "enable_dp_attention": False, "disaggregation_mode": "null"}


class FakeModule:
    """As much of a torch module as arming looks at."""

    layers_to_capture: list[int]
    capture_aux_hidden_states: bool

    def __init__(self, *children: "FakeModule", **attributes: object) -> None:
        self.children = children
        self.__dict__.update(attributes)

    def modules(self):
        yield self
        for child in self.children:
            yield from child.modules()

    def forward(self) -> None:
        """Stand where the patched forward would."""


KEY = f"{FakeModule.__module__}.FakeModule"


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backbones, "CAPTURES", {KEY: True})
    monkeypatch.setattr(backbones, "LOOPS", {})


def _backbone(start: int = 0, end: int = 8, **more: object) -> FakeModule:
    return FakeModule(layers_to_capture=[], layers=[None] * 8, start_layer=start, end_layer=end, **more)


def _model(backbone: FakeModule) -> FakeModule:
    return FakeModule(backbone, model=backbone, capture_aux_hidden_states=False)


def _config(*layers: int) -> TapConfig:
    return TapConfig.from_environment({"AUXTAP_LAYERS": ",".join(map(str, layers))})


class FakeRMSNorm:
    """A norm by its class."""


class FakeMissingLayer:
    """What stands for the norm where a stage has none."""


def test_the_final_norm_is_the_one_that_the_patch_names(monkeypatch):
    monkeypatch.setattr(backbones, "NORMS", {KEY: "norm_f"})
    norm = FakeRMSNorm()
    backbone = _backbone(norm_f=norm, norm=FakeRMSNorm())
    assert arming.find_final_norm(Backbone(backbone, None, 0, 8, True)) is norm


@pytest.mark.parametrize(("norms", "reason"), [({}, "is not recognised"), ({KEY: "norm"}, "its norm is FakeMissing")])
def test_a_final_norm_that_no_hook_sees_is_refused(monkeypatch, norms, reason):
    monkeypatch.setattr(backbones, "NORMS", norms)
    backbone = _backbone(norm=FakeMissingLayer())
    with pytest.raises(RefusedError, match=f"pre-norm final state of FakeModule is not to be had: .*{reason}"):
        arming.find_final_norm(Backbone(backbone, None, 0, 8, True))


def test_a_compiled_decode_is_refused_beside_a_hook():
    arming.check_uncompiled(SimpleNamespace(**SAFE))
    with pytest.raises(RefusedError, match="--enable-torch-compile"):
        arming.check_uncompiled(SimpleNamespace(**SAFE, enable_torch_compile=True))


def test_safe_settings_pass():
    arming.check_settings(SimpleNamespace(**SAFE), 60)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"speculative_algorithm": "EAGLE3"}, "draft worker"),
        ({"enable_two_batch_overlap": True}, "model_forward_maybe_tbo"),
        ({"enable_piecewise_cuda_graph": True}, "graph replay"),
        ({"enable_nsa_prefill_context_parallel": True}, "gathered"),
        ({"attn_cp_size": 2}, "context parallelism"),
        ({"moe_dense_tp_size": 1}, "scattered"),
        ({"disaggregation_mode": "prefill"}, "different servers"),
        ({"is_embedding": True}, "pooler"),
        ({"moe_a2a_backend": "mori"}, "not gathered"),
        ({"enable_layernorm_sp": True}, "spread over the ranks"),
        ({"disable_piecewise_cuda_graph": False}, "--disable-piecewise-cuda-graph is missing"),
        ({"disable_prefill_cuda_graph": False}, "--disable-prefill-cuda-graph is missing"),
        ({"enforce_disable_flashinfer_allreduce_fusion": False}, "is missing: a state at the capture"),
        ({"moe_a2a_backend": "deepep", "enable_dp_attention": True}, "mixes"),
        ({"watchdog_timeout": 30}, "watchdog"),
    ],
)
def test_hazards_are_refused_with_their_reason(setting, reason):
    with pytest.raises(RefusedError, match=reason):
        arming.check_settings(SimpleNamespace(**{**SAFE, **setting}), 60)


def test_wrappers_are_looked_through():
    backbone = _backbone()
    inner = _model(backbone)
    found = arming.find_backbone(FakeModule(inner))
    assert found == Backbone(backbone, inner, 0, 8, True)


def test_a_backbone_is_known_by_the_class_that_defines_its_forward():
    class Derived(FakeModule):
        """Inherits the forward."""

    backbone = Derived(layers_to_capture=[], layers=[None] * 8)
    assert arming.find_backbone(_model(backbone)).module is backbone


def test_a_loop_needs_no_head_and_arms_nothing(monkeypatch):
    monkeypatch.setattr(backbones, "CAPTURES", {})
    monkeypatch.setattr(backbones, "LOOPS", {KEY: False})
    found = arming.find_backbone(FakeModule(FakeModule(layers=[None] * 8, start_layer=0, end_layer=8)))
    assert (found.head, found.start, found.end, found.staged) == (None, 0, 8, False)
    assert arming.arm_backbone(found, _config(2, 6), 8, 1) == (2, 6)
    with pytest.raises(RefusedError, match="no stage tap"):
        arming.arm_backbone(found, _config(2, 6), 8, 2)


def test_a_refused_backbone_is_named_with_its_reason(monkeypatch):
    monkeypatch.setattr(backbones, "CAPTURES", {})
    monkeypatch.setattr(backbones, "REFUSED", {KEY: "the residual is left out"})
    with pytest.raises(RefusedError, match=r"0 backbones .*FakeModule: the residual is left out"):
        arming.find_backbone(_model(_backbone()))


def test_a_model_without_capture_code_is_refused():
    with pytest.raises(RefusedError, match="0 backbones that this patch captures"):
        arming.find_backbone(FakeModule())


def test_a_backbone_that_nothing_unpacks_is_refused():
    with pytest.raises(RefusedError, match="0 modules unpack"):
        arming.find_backbone(FakeModule(_backbone()))


def test_two_backbones_are_no_guess():
    with pytest.raises(RefusedError, match="2 backbones"):
        arming.find_backbone(FakeModule(_model(_backbone()), _model(_backbone())))


def test_one_stage_arms_all():
    backbone = _backbone()
    head = _model(backbone)
    assert arming.arm_backbone(Backbone(backbone, head, 0, 8, True), _config(6, 2), 8, 1) == (2, 6)
    assert backbone.layers_to_capture == [2, 6]
    assert head.capture_aux_hidden_states is True


def test_each_stage_arms_what_it_owns():
    for start, end, own, flag in ((0, 4, (2, 3), False), (4, 8, (6,), True)):
        backbone = _backbone(start, end)
        head = _model(backbone)
        assert arming.arm_backbone(Backbone(backbone, head, start, end, True), _config(2, 3, 6), 8, 2) == own
        assert head.capture_aux_hidden_states is flag


def test_the_flag_stays_down_where_nothing_is_captured():
    """With the flag up the head would unpack a plain tensor: silent nonsense for a batch of two rows."""
    backbone = _backbone(4, 8)
    head = _model(backbone)
    assert arming.arm_backbone(Backbone(backbone, head, 4, 8, True), _config(2), 8, 2) == ()
    assert head.capture_aux_hidden_states is False


def test_a_stage_exit_without_tap_is_refused():
    backbone = _backbone(0, 4)
    with pytest.raises(RefusedError, match="no stage tap for FakeModule"):
        arming.arm_backbone(Backbone(backbone, _model(backbone), 0, 4, False), _config(2), 8, 2)


def test_a_setter_of_the_backbone_is_used():
    called: list[list[int]] = []
    backbone = _backbone()

    def choose(layers: list[int]) -> None:
        called.append(layers)
        backbone.layers_to_capture = layers

    backbone.set_eagle3_layers_to_capture = choose  # type: ignore[attr-defined]
    arming.arm_backbone(Backbone(backbone, _model(backbone), 0, 8, True), _config(2, 3), 8, 1)
    assert called == [[2, 3]]


def test_a_setter_that_chooses_other_layers_is_refused():
    backbone = _backbone()
    backbone.set_eagle3_layers_to_capture = lambda layers: setattr(  # type: ignore[attr-defined]
        backbone, "layers_to_capture", [layer + 1 for layer in layers]
    )
    with pytest.raises(RefusedError, match=r"captures .3, 4. where .2, 3. was set"):
        arming.arm_backbone(Backbone(backbone, _model(backbone), 0, 8, True), _config(2, 3), 8, 1)


@pytest.mark.parametrize("layers", [(0,), (8,), (2, 61), ()])
def test_indices_out_of_range_are_refused(layers):
    backbone = _backbone()
    with pytest.raises(RefusedError):
        arming.arm_backbone(Backbone(backbone, _model(backbone), 0, 8, True), _config(*layers), 8, 1)


def test_the_rank_is_found_where_the_release_does_not_keep_it():
    runner = SimpleNamespace(server_args=SimpleNamespace(enable_dp_attention=False))
    ranks.keep_dp_rank(runner, 1)
    assert ranks.find_dp_rank(runner, 2) == 1
    runner.dp_rank = 0
    assert ranks.find_dp_rank(runner, 2) == 0


def test_a_rank_that_was_not_given_is_refused():
    runner = SimpleNamespace(server_args=SimpleNamespace(enable_dp_attention=False))
    ranks.keep_dp_rank(runner, None)
    with pytest.raises(RefusedError, match="not to be found"):
        ranks.find_dp_rank(runner, 2)


def test_an_unknown_rank_is_refused():
    runner = SimpleNamespace(server_args=SimpleNamespace(enable_dp_attention=False))
    with pytest.raises(RefusedError, match="not to be found"):
        ranks.find_dp_rank(runner, 2)
    assert ranks.find_dp_rank(runner, 1) == 0
