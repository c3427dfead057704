"""The stand-ins of the CPU engine, in real processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from auxtap.serving.engine_env import EngineEnvironment
from auxtap.serving.profile import CPU_SHIM


def run(
    program: str, *, python: Path | str = sys.executable, on: bool = True, path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program with the shim first on the path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AUXTAP_"))}
    environment["PYTHONPATH"] = os.pathsep.join(str(entry) for entry in (CPU_SHIM, path) if entry is not None)
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    if on:
        environment["AUXTAP_CPU_SHIM"] = "1"
    return subprocess.run(
        [str(python), "-c", program], capture_output=True, text=True, env=environment, timeout=120, check=False
    )


def prints(program: str, expected: str, *, on: bool = True, path: Path | None = None) -> None:
    answer = run(program, on=on, path=path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == expected


def test_it_is_off_without_its_variable() -> None:
    prints(
        "import sys; print([type(f).__name__ for f in sys.meta_path if 'aux_' in type(f).__module__])", "[]", on=False
    )


def test_it_touches_no_process_that_imports_nothing_of_it() -> None:
    prints(
        "import sys; print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'sglang', 'triton')))", "[]"
    )


def test_a_stub_is_imported_subclassed_joined_and_annotated() -> None:
    prints(
        "import flashinfer.comm as comm\n"
        "from sgl_kernel.deep.er import fused\n"
        "from torchvision.transforms import *\n"
        "class Mine(comm.Workspace): pass\n"
        "def f(x: fused | None, y: 'int' = 1, z: None | comm.A = None) -> comm.B.C: return y\n"
        "print(f(1), issubclass(Mine, comm.Workspace), fused.__name__)",
        "1 True sgl_kernel.deep.er.fused",
    )


@pytest.mark.parametrize("call", ["flashinfer.rmsnorm(1)", "flashinfer.jit.Spec(x=2)", "flashinfer.A()"])
def test_a_stub_that_is_called_raises(call: str) -> None:
    answer = run(f"import flashinfer\n{call}")
    assert answer.returncode == 1
    assert "is a stub of the CPU engine and was called" in answer.stderr


def test_a_stub_has_no_dunder_it_was_not_given() -> None:
    prints(
        "import deep_gemm; print(hasattr(deep_gemm, '__wrapped__'), hasattr(deep_gemm.x, '__torch_function__'))",
        "False False",
    )


def test_metadata_of_a_stub_is_there_and_of_others_is_not() -> None:
    prints(
        "from importlib import metadata\n"
        "try: metadata.version('no-such-package'); print('wrong')\n"
        "except metadata.PackageNotFoundError: pass\n"
        "print(metadata.version('torchao'), metadata.version('compressed-tensors'))",
        "0.17.0 0.20.1",
    )


def test_a_real_package_wins(tmp_path: Path) -> None:
    (tmp_path / "flashinfer.py").write_text("KIND = 'real'\n")
    prints("import flashinfer; print(flashinfer.KIND)", "real", path=tmp_path)


def test_a_package_that_is_not_stubbed_is_still_missing() -> None:
    answer = run("import vllm_or_something")
    assert "ModuleNotFoundError: No module named 'vllm_or_something'" in answer.stderr


def test_the_sitecustomize_that_it_hides_is_run(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.HIDDEN = 'ran'\n")
    prints("print(HIDDEN)", "ran", path=tmp_path)
    prints("print(HIDDEN)", "ran", path=tmp_path, on=False)


def test_a_hook_runs_once_its_module_is_imported(tmp_path: Path) -> None:
    package = tmp_path / "sglang" / "srt" / "models"
    package.mkdir(parents=True)
    (package / "deepseek_v2.py").write_text(
        "class AttentionBackendRegistry:\n"
        "    handlers = {}\n"
        "    @classmethod\n"
        "    def register(cls, name, handler): cls.handlers[name] = handler\n"
        "def _dispatch_mla_subtype(attn, batch): return 'absorbed'\n"
    )
    prints(
        "import inspect, sglang.srt.models.deepseek_v2 as m\n"
        "print(m.AttentionBackendRegistry.handlers['torch_native'](None, None), 'absorbed' in inspect.getsource(m))",
        "absorbed True",
        path=tmp_path,
    )


@pytest.mark.engine
def test_torch_does_not_see_the_triton_stub(engine: EngineEnvironment) -> None:
    answer = run(
        "import triton, triton.language as tl\n"
        "@triton.jit\n"
        "def kernel(x): return x\n"
        "@triton.autotune(configs=[triton.Config({}, num_warps=4)], key=['n'])\n"
        "def tuned(x): return x\n"
        "import torch, torch.utils._triton\n"
        "import torch._inductor.runtime.triton_compat as compat\n"
        "print(kernel(1), tuned(2), torch.utils._triton.has_triton(), compat.HAS_TRITON)",
        python=engine.python,
    )
    assert answer.stdout.strip() == "1 2 False False", answer.stderr


@pytest.mark.engine
def test_pipeline_stages_get_events_and_streams(engine: EngineEnvironment, tmp_path: Path) -> None:
    package = tmp_path / "sglang" / "srt" / "managers"
    package.mkdir(parents=True)
    (package / "scheduler_pp_mixin.py").write_text("")
    answer = run(
        "import torch, sglang.srt.managers.scheduler_pp_mixin\n"
        "event = torch.cuda.Event(enable_timing=True)\n"
        "event.record(torch.cuda.current_stream())\n"
        "torch.cuda.current_stream().wait_event(event)\n"
        "event.synchronize()\n"
        "print(event.query(), event.elapsed_time(event))",
        python=engine.python,
        path=tmp_path,
    )
    assert answer.stdout.strip() == "True 0.0", answer.stderr
