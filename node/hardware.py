"""What a GPU architecture cannot run: attention and MoE backends, by compute capability."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ATTENTION = ("--attention-backend", "--prefill-attention-backend", "--decode-attention-backend")
MOE = ("--moe-runner-backend",)


@dataclass(frozen=True)
class BackendRule:
    """A backend that the majors named cannot run; `source` says how that is known."""

    options: Sequence[str]
    value: str
    majors: frozenset[int]
    reason: str
    source: str


_ALL = frozenset(range(7, 13))
_REPORTS = "community reports, not tried by auxtap"
RULES = (
    BackendRule(
        ATTENTION, "fa3", _ALL - {8, 9}, "FlashAttention 3 has kernels for SM80 to SM90 only",
        "SGLang 0.5.9 layers/attention/attention_registry.py, create_flashattention_v3_backend",
    ),
    BackendRule(
        ATTENTION, "trtllm_mha", _ALL - {10}, "its kernels are for SM100 only, not SM120",
        "SGLang 0.5.9 server_args.py, ServerArgs",
    ),
    BackendRule(
        ATTENTION, "trtllm_mla", _ALL - {10, 11, 12}, "its kernels are for Blackwell only",
        "SGLang 0.5.9 server_args.py, ServerArgs",
    ),
    BackendRule(ATTENTION, "trtllm_mla", frozenset({12}), "it starts on SM120, and MLA prefill fails", _REPORTS),
    BackendRule(ATTENTION, "cutlass_mla", _ALL - {10}, "its kernels are for SM100", _REPORTS),
    BackendRule(ATTENTION, "flashmla", frozenset({7, 8, 12}), "its kernels are for SM90 and SM100", _REPORTS),
    BackendRule(ATTENTION, "torch_native", frozenset(range(9, 13)), "it is for CPUs and tests: far too slow", "auxtap"),
    BackendRule(MOE, "deep_gemm", frozenset({7, 8, 12}), "DeepGEMM has kernels for SM90 and SM100 only",
                "SGLang 0.5.9 server_args.py, the help of --fp8-gemm-backend"),
    BackendRule(MOE, "flashinfer_trtllm", _ALL - {10}, "its kernels are for SM100", _REPORTS),
)  # fmt: skip


def backend_problems(options: Mapping[str, str], capability: str) -> tuple[str, ...]:
    """Say which of the chosen backends the architecture cannot run; empty where nothing is known against them."""
    major = capability.partition(".")[0]
    if not major.isdigit():
        return ()
    found = []
    for rule in RULES:
        for option in rule.options:
            if options.get(option) == rule.value and int(major) in rule.majors:
                found.append(f"{option} {rule.value} on SM{capability.replace('.', '')}: {rule.reason} ({rule.source})")
    return tuple(found)
