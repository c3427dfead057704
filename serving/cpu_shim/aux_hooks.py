"""Change a few names of SGLang and torch right after a module was imported, where SGLang has no CPU path.

None of those here changes what a decoder block computes: MLA models are sent down the one attention path that the
`torch_native` backend implements, and pipeline stages get events and streams that do nothing, because on a CPU every
operation has ended when its call returns. Those of `aux_gpt_oss` do replace kernels, of GPT-OSS alone.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import aux_gpt_oss


class CpuEvent:
    """`torch.cuda.Event` where everything recorded has already happened."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def record(self, stream: Any = None) -> None:
        """Do nothing."""

    def wait(self, stream: Any = None) -> None:
        """Do nothing."""

    def synchronize(self) -> None:
        """Do nothing."""

    def query(self) -> bool:
        """Tell that the work before the event is done."""
        return True

    def elapsed_time(self, end_event: "CpuEvent") -> float:
        """Return 0 ms."""
        return 0.0


class CpuStream:
    """`torch.cuda.Stream` of a machine that runs everything in program order."""

    def wait_event(self, event: Any) -> None:
        """Do nothing."""

    def wait_stream(self, stream: Any) -> None:
        """Do nothing."""

    def record_event(self, event: Any = None) -> CpuEvent:
        """Return an event that has happened."""
        return CpuEvent()

    def query(self) -> bool:
        """Tell that the stream is idle."""
        return True

    def synchronize(self) -> None:
        """Do nothing."""


def _current_stream(device: Any = None) -> CpuStream:
    return CpuStream()


def register_mla_dispatch(module: ModuleType) -> None:
    """Give `torch_native` the absorbed MLA path (`AttentionBackendRegistry`; DeepSeek, Kimi)."""
    registry = getattr(module, "AttentionBackendRegistry", None)
    dispatch = getattr(module, "_dispatch_mla_subtype", None)
    if registry is not None and dispatch is not None:
        registry.register("torch_native", dispatch)


def provide_cpu_events(module: ModuleType) -> None:
    """Give the pipeline scheduler (`SchedulerPPMixin`) events and streams that work without CUDA."""
    import torch

    if not torch.cuda.is_available():
        torch.cuda.Event = CpuEvent
        torch.cuda.current_stream = _current_stream


def answer_for_amx(module: ModuleType) -> None:
    """Give torch the question after AMX under its old name, which SGLang up to 0.5.3 asks (`cpu_has_amx_support`)."""
    import torch

    if not hasattr(torch._C._cpu, "_is_amx_tile_supported"):
        torch._C._cpu._is_amx_tile_supported = torch.cpu._is_amx_tile_supported


Hook = Callable[[ModuleType], None]
HOOKS: dict[str, Hook] = {
    # Up to 0.5.6 the registry stood in deepseek_v2 itself.
    "sglang.srt.models.deepseek_v2": register_mla_dispatch,
    "sglang.srt.models.deepseek_common.attention_backend_handler": register_mla_dispatch,
    "sglang.srt.utils": answer_for_amx,
    "sglang.srt.managers.scheduler_pp_mixin": provide_cpu_events,
    **aux_gpt_oss.HOOKS,
}


class HookedLoader(Loader):
    """Run a module with its own loader, then its hook."""

    def __init__(self, loader: Any, hook: Hook) -> None:
        self._loader = loader
        self._hook = hook

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._hook(module)


class HookFinder(MetaPathFinder):
    """Find the hooked modules where Python would find them and wrap their loaders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        hook = HOOKS.get(fullname)
        if hook is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = HookedLoader(spec.loader, hook)
        return spec


def install() -> None:
    """Put the finder first, once."""
    if not any(isinstance(finder, HookFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, HookFinder())
