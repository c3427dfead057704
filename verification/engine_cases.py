"""Which servers prove a release: the tiny models it has, each under the settings it can run with."""

from dataclasses import dataclass

from auxtap.core.source_tree import SRT_ROOT, SourceTree

SETTINGS = {
    "default": (),
    "chunk16": ("--chunked-prefill-size", "16"),
    "pp2": ("--pp-size", "2"),
}
_KIMI = SRT_ROOT / "models/kimi_k25.py"
_DEEPSEEK = SRT_ROOT / "models/deepseek_v2.py"
_TAKES_STAGES = b"pp_proxy_tensors"
_READS_EMBEDDINGS = b"else input_embeds.shape[0]"


@dataclass(frozen=True)
class EngineCase:
    """One server to prove: a tiny model under a setting of `SETTINGS`."""

    model: str
    setting: str


@dataclass(frozen=True)
class CasePlan:
    """The servers that prove a release, and what of it cannot be served at all, each with the reason."""

    cases: tuple[EngineCase, ...]
    not_run: tuple[str, ...]


def engine_cases(tree: SourceTree) -> CasePlan:
    """Return the cases of a release: Llama, and Kimi-K2.5 with the DeepSeek-V3 that it wraps for what it cannot do."""
    cases = [EngineCase("llama", setting) for setting in SETTINGS]
    if _KIMI not in tree.files:
        cases += [EngineCase("deepseek_v3", setting) for setting in SETTINGS]
        return CasePlan(tuple(cases), ("kimi_k25: the release has no such model",))
    cases += [EngineCase("kimi_k25", setting) for setting in SETTINGS if setting != "pp2"]
    obstacle = _obstacle_to_stages(tree)
    cases.append(EngineCase("deepseek_v3" if obstacle else "kimi_k25", "pp2"))
    return CasePlan(tuple(cases), (obstacle,) if obstacle else ())


def _obstacle_to_stages(tree: SourceTree) -> str:
    """Return why SGLang itself cannot serve Kimi-K2.5 with pipeline stages, empty where it can.

    Up to 0.5.9 its forward takes nothing from the stage before; in 0.5.13 to 0.5.16 a later stage, which gets neither
    ids nor embeddings, ends with an AttributeError (`DeepseekV2ForCausalLM.forward`).
    """
    if _TAKES_STAGES not in tree.files[_KIMI]:
        return "kimi_k25/pp2: the model's forward takes no pp_proxy_tensors"
    if _READS_EMBEDDINGS in tree.files.get(_DEEPSEEK, b""):
        return "kimi_k25/pp2: DeepseekV2ForCausalLM.forward reads the embeddings' shape on a stage that has none"
    return ""
