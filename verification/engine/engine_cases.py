"""Which servers prove a release: the tiny models it has, each under the settings it can run with."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from auxtap.core.errors import UsageError
from auxtap.core.source_tree import MODELS_ROOT, SRT_ROOT, SourceTree
from auxtap.tracer.flow.classes import ClassIndex
from auxtap.tracer.reading.trees import read_models
from auxtap.tracer.report.readings import ModelReadings
from auxtap.verification.engine.engine_settings import RANK_FLAGS, SETTINGS
from auxtap.verification.engine.tiny_models import HOW_TO_ADD, TINY_MODELS

# What proves a release in half a minute.
QUICK_SETTINGS = ("default", "chunk16", "pp2")
# Tiny models that SGLang has no capture code for: the patch taps their loops where it names them.
LOOP_MODELS = ("mixtral", "starcoder2")
_TAKES_STAGES = b"pp_proxy_tensors"
_PASSES_KEYS = b"extra_key=recv_req.extra_key"
MLA_MODELS = ("deepseek_v3", "kimi_k25")
_REFUSES_MLA = b"MLA optimization not supported on CPU"
_MODEL_RUNNER = SRT_ROOT / "model_executor/model_runner.py"
# `Starcoder2Model.__init__`; `GroupCoordinator.rank` is the rank among all, `rank_in_group` the stage.
_RANK_FOR_STAGE = b"pp_rank = pp_group.rank\n"
_MESSAGES_ON_CUDA = b").cuda(\n                device=torch.cuda.current_device()"
_SCHEDULER = SRT_ROOT / "managers/scheduler.py"
_READS_EMBEDDINGS = b"else input_embeds.shape[0]"
# The file of each tiny model, and the file whose forward runs its decoder blocks where that is another.
_MODEL_FILES = {name: f"{name}.py" for name in TINY_MODELS} | {"deepseek_v3": "deepseek_v2.py"}
_LOOP_FILES = {"qwen3": "qwen2.py", "qwen3_moe": "qwen2_moe.py", "kimi_k25": "deepseek_v2.py"}


@dataclass(frozen=True)
class EngineCase:
    """One server to prove: a tiny model under a setting of `SETTINGS`."""

    model: str
    setting: str

    def __str__(self) -> str:
        return f"{self.model}/{self.setting}"


@dataclass(frozen=True)
class NotRun:
    """A case that cannot be served, and the exact reason."""

    case: EngineCase
    reason: str

    def __str__(self) -> str:
        return f"{self.case}: {self.reason}"


@dataclass(frozen=True)
class CasePlan:
    """The servers that prove a release, and what of it cannot be served at all."""

    cases: tuple[EngineCase, ...]
    left_out: tuple[NotRun, ...]

    @property
    def not_run(self) -> tuple[str, ...]:
        """What cannot be served and why, a line each."""
        return tuple(str(case) for case in self.left_out)


def model_modules(model: str) -> tuple[str, ...]:
    """Return the files below models/, without suffix, that hold a tiny model's class and its decoder loop."""
    names = (_MODEL_FILES[model], _LOOP_FILES.get(model, _MODEL_FILES[model]))
    return tuple(dict.fromkeys(name.removesuffix(".py") for name in names))


def engine_cases(tree: SourceTree) -> CasePlan:
    """Return the quick cases: Llama, and Kimi-K2.5 with the DeepSeek-V3 that it wraps for what it cannot do."""
    cases: list[EngineCase] = []
    left_out: list[NotRun] = []
    for models in (("llama",), ("kimi_k25", "deepseek_v3")):
        for setting in QUICK_SETTINGS:
            for case in (EngineCase(model, setting) for model in models):
                reason = obstacle(tree, case)
                if not reason:
                    cases.append(case)
                    break
                left_out.append(NotRun(case, reason))
    return CasePlan(tuple(cases), tuple(left_out))


def matrix_cases(
    tree: SourceTree,
    staged_files: Sequence[PurePosixPath],
    models: Sequence[str] = TINY_MODELS,
    settings: Sequence[str] = tuple(SETTINGS),
    looped_files: Sequence[PurePosixPath] = (),
) -> CasePlan:
    """Return every model under every setting.

    `staged_files` are those whose stage exit the patch taps, `looped_files` those whose decoder loop it taps.

    Raises:
        UsageError: a model or a setting is unknown.
    """
    wanted = [EngineCase(model, setting) for model in models for setting in settings]
    check_cases(wanted)
    cases: list[EngineCase] = []
    left_out: list[NotRun] = []
    for case in wanted:
        missing = _missing_loop_tap(case, looped_files) or _missing_stage_tap(case, staged_files)
        reason = obstacle(tree, case) or _refusal(tree, case) or missing
        if reason:
            left_out.append(NotRun(case, reason))
        else:
            cases.append(case)
    return CasePlan(tuple(cases), tuple(left_out))


def check_cases(cases: Sequence[EngineCase]) -> None:
    """Refuse cases that are unknown.

    Raises:
        UsageError: a case names an unknown model or setting.
    """
    for case in cases:
        if case.model not in TINY_MODELS:
            raise UsageError(
                f"no engine case {case}: there is no tiny model {case.model!r}; there are {', '.join(TINY_MODELS)}",
                hint=HOW_TO_ADD,
            )
        if case.setting not in SETTINGS:
            raise UsageError(f"no engine case {case}", hint=f"settings: {', '.join(SETTINGS)}")


def obstacle(tree: SourceTree, case: EngineCase) -> str:
    """Return why SGLang itself cannot serve a case, empty where it can.

    Up to 0.5.9 the forward of `KimiK25ForConditionalGeneration` takes nothing from the stage before; in 0.5.13 to
    0.5.16 a later stage of it, which gets neither ids nor embeddings, ends with an AttributeError
    (`DeepseekV2ForCausalLM.forward`). Up to 0.5.10 `Scheduler.handle_generate_request` drops a request's `extra_key`.
    """
    path = _model_path(_MODEL_FILES[case.model])
    if path not in tree.files:
        return f"the release has no {path.relative_to(SRT_ROOT)}"
    if case.model in MLA_MODELS and _REFUSES_MLA in tree.files.get(_MODEL_RUNNER, b""):
        return "ModelRunner refuses MLA on a CPU without AMX"
    setting = SETTINGS[case.setting]
    if RANK_FLAGS[0] in setting.arguments and _RANK_FOR_STAGE in tree.files[path]:
        return "the model takes its rank in the whole server for its stage: rank 1 looks for blocks that are not there"
    if setting.radix_cache and _PASSES_KEYS not in tree.files.get(_SCHEDULER, b""):
        return "Scheduler.handle_generate_request drops extra_key: a key of its own keeps no prompt out of the cache"
    if not setting.staged:
        return ""
    if _TAKES_STAGES not in tree.files[path]:
        return "the model's forward takes no pp_proxy_tensors"
    if any(_MESSAGES_ON_CUDA in tree.files.get(SRT_ROOT / name, b"") for name in ("utils.py", "utils/common.py")):
        return "point_to_point_pyobj moves the stages' messages to a CUDA device"
    inner = tree.files.get(_model_path(_LOOP_FILES.get(case.model, path.name)), b"")
    if case.model == "kimi_k25" and _READS_EMBEDDINGS in inner:
        return "DeepseekV2ForCausalLM.forward reads the embeddings' shape on a stage that has none"
    return ""


def _refusal(tree: SourceTree, case: EngineCase) -> str:
    """Return why no patch captures the model in this release, empty where one does."""
    path = _loop_path(case)
    read = ModelReadings(tuple(read_models(ClassIndex(tree), [path] if path in tree.files else [])), ())
    if read.usable("native") or read.usable("loop") or not read.objections:
        return ""
    reasons = (f"{name}: {objection.reason}" for (_, name), objection in read.objections.items())
    return f"refused in {path.name}: " + "; ".join(reasons)


def _missing_loop_tap(case: EngineCase, looped_files: Sequence[PurePosixPath]) -> str:
    path = _model_path(_MODEL_FILES[case.model])
    if case.model not in LOOP_MODELS or path in looped_files:
        return ""
    return f"SGLang captures nothing there and the patch does not tap {path.name}: write it with --model {path.stem}"


def _missing_stage_tap(case: EngineCase, staged_files: Sequence[PurePosixPath]) -> str:
    if not SETTINGS[case.setting].staged:
        return ""
    path = _loop_path(case)
    if path in staged_files:
        return ""
    return f"the patch has no stage tap in {path.name}: write it with --model {path.stem} or --model all"


def _loop_path(case: EngineCase) -> PurePosixPath:
    return _model_path(_LOOP_FILES.get(case.model, _MODEL_FILES[case.model]))


def _model_path(name: str) -> PurePosixPath:
    return MODELS_ROOT / name
