"""Choosing layers on a model, and the settings under which the tap refuses to start."""

from types import SimpleNamespace

import pytest

from auxtap.rewriters.patch.hazards import hazard_table
from auxtap.tap import arming, backbones, hazards, ranks
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
    """Put in place what the patch of a tree brings along."""
    monkeypatch.setattr(backbones, "CAPTURES", {KEY: True})
    monkeypatch.setattr(backbones, "LOOPS", {})
    written: dict[str, object] = {}
    exec(hazard_table(), written)
    for name in ("REFUSED", "NEEDED", "CLEARED"):
        monkeypatch.setattr(hazards, name, written[name])


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


CONFIG = TapConfig.from_environment({"AUXTAP_LAYERS": "2"})
PRENORM = TapConfig.from_environment({"AUXTAP_LAYERS": "2", "AUXTAP_FINAL": "both"})


def test_a_compiled_decode_is_refused_beside_a_hook():
    compiled = SimpleNamespace(**SAFE, enable_torch_compile=True)
    arming.check_settings(compiled, CONFIG)
    arming.check_settings(SimpleNamespace(**SAFE), PRENORM)
    with pytest.raises(RefusedError, match="--enable-torch-compile"):
        arming.check_settings(compiled, PRENORM)


def test_safe_settings_pass():
    arming.check_settings(SimpleNamespace(**SAFE), CONFIG)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ({"speculative_algorithm": "EAGLE3"}, "a draft model"),
        ({"attn_cp_size": 2}, "--attn-cp-size is 2: the final state is gathered"),
        ({"moe_dense_tp_size": 1}, "scattered"),
        ({"disaggregation_mode": "prefill"}, "different servers"),
        ({"disable_piecewise_cuda_graph": False}, "--disable-piecewise-cuda-graph is missing"),
        ({"disable_prefill_cuda_graph": False}, "--disable-prefill-cuda-graph is missing"),
        ({"enforce_disable_flashinfer_allreduce_fusion": False}, "is missing: at the capture a state"),
        ({"moe_a2a_backend": "deepep", "enable_dp_attention": True}, "is deepep and --enable-dp-attention is True"),
        ({"cuda_graph_config": {"prefill": {"backend": "full"}}}, "--cuda-graph-config is full: the Python"),
        (
            {"cuda_graph_config": SimpleNamespace(prefill=SimpleNamespace(backend="breakable"))},
            "--cuda-graph-config is breakable: the Python",
        ),
        ({"watchdog_timeout": 30}, "watchdog"),
    ],
)
def test_hazards_are_refused_with_their_reason(setting, reason):
    with pytest.raises(RefusedError, match=reason):
        arming.check_settings(SimpleNamespace(**{**SAFE, **setting}), CONFIG)


@pytest.mark.parametrize(
    "setting",
    [
        {"attn_cp_size": 1, "dcp_size": 1},
        {"moe_dense_tp_size": 2},
        {"moe_a2a_backend": "deepep"},
        {"enable_dp_attention": True},
        {"kt_max_deferred_experts_per_token": 0},
        {"cuda_graph_config": {"decode": {"backend": "full"}}},
        {"cuda_graph_config": SimpleNamespace(prefill=SimpleNamespace(backend="disabled"))},
        {"disable_prefill_cuda_graph": True},
    ],
)
def test_values_that_change_nothing_pass(setting):
    arming.check_settings(SimpleNamespace(**{**SAFE, **setting}), CONFIG)


def test_what_was_decided_beside_the_record_counts():
    """From 0.5.19 on the record keeps what it was given; the last declaration is what the server does."""
    declared = [("first", {"attn_cp_size": 1}), ("model", {"attn_cp_size": 8}), ("other", {"dtype": "bfloat16"})]
    with pytest.raises(RefusedError, match="--attn-cp-size is 8"):
        arming.check_settings(SimpleNamespace(**SAFE, attn_cp_size=1, _resolved_overrides=declared), CONFIG)
    declared.append(("topology", {"attn_cp_size": 1}))
    arming.check_settings(SimpleNamespace(**SAFE, attn_cp_size=1, _resolved_overrides=declared), CONFIG)


def test_what_was_declared_and_written_since_is_read_where_it_was_written():
    """Up to 0.5.18 declarations are written into the record, which later assignments change alone."""
    server_args = SimpleNamespace(
        **SAFE, attn_cp_size=1, _resolved_overrides=[("model", {"attn_cp_size": 8})], _declarations_materialized=True
    )
    arming.check_settings(server_args, CONFIG)


def test_the_sizes_of_the_groups_count(monkeypatch):
    monkeypatch.setattr(arming, "parallel_value", {"attn_dp_size": 8}.get)
    arming.check_settings(SimpleNamespace(**SAFE), CONFIG)
    with pytest.raises(RefusedError, match="is deepep and --attn-dp-size is 8"):
        arming.check_settings(SimpleNamespace(**{**SAFE, "moe_a2a_backend": "deepep"}), CONFIG)


def test_what_has_no_switch_is_cleared(monkeypatch):
    kept = {"enable_flashinfer_allreduce_fusion": True, "dtype": "auto"}
    monkeypatch.setattr(arming, "_global_arguments", lambda: (kept,))
    server_args = SimpleNamespace(**SAFE, enable_flashinfer_allreduce_fusion=True)
    assert arming.clear_settings(server_args) == ["enable_flashinfer_allreduce_fusion"]
    assert (server_args.enable_flashinfer_allreduce_fusion, kept) == (
        False, {"enable_flashinfer_allreduce_fusion": False, "dtype": "auto"},
    )  # fmt: skip
    assert arming.clear_settings(server_args) == []
    switched = SimpleNamespace(
        enable_flashinfer_allreduce_fusion=True, enforce_disable_flashinfer_allreduce_fusion=True
    )
    assert arming.clear_settings(switched) == []


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


def test_a_head_that_hands_on_another_state_is_refused(monkeypatch):
    class ScalingHead(FakeModule):
        def forward(self) -> None:
            """Stand where the head's own forward would."""

    backbone = _backbone()
    model = ScalingHead(backbone, model=backbone, capture_aux_hidden_states=False)
    assert arming.find_backbone(model).head is model
    monkeypatch.setattr(backbones, "REFUSED", {KEY.replace("FakeModule", "ScalingHead"): "the final state is scaled"})
    with pytest.raises(RefusedError, match="ScalingHead: the final state is scaled"):
        arming.find_backbone(model)


def test_marks_are_set_where_a_backbone_asks_its_blocks_and_nothing_else_sets_them(monkeypatch):
    layers = [FakeModule() for _ in range(8)]
    backbone = FakeModule(layers_to_capture=[], layers=layers, start_layer=0, end_layer=8)
    found = arming.find_backbone(_model(backbone))
    arming.arm_backbone(found, _config(2, 6), 8, 1)
    assert not any(hasattr(layer, "_is_layer_to_capture") for layer in layers)
    monkeypatch.setattr(backbones, "MARKS", {KEY: "_is_layer_to_capture"})
    arming.arm_backbone(found, _config(2, 6), 8, 1)
    assert [number for number, layer in enumerate(layers) if vars(layer)["_is_layer_to_capture"]] == [2, 6]
    arming.arm_backbone(found, _config(3), 8, 1)
    assert [number for number, layer in enumerate(layers) if vars(layer)["_is_layer_to_capture"]] == [3]


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
