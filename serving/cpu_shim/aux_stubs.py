"""Stand in for packages that SGLang imports on a CPU but never calls there.

The finder is *appended* to `sys.meta_path`: an installed package always wins. Every attribute of a stub module is a
class, because SGLang subclasses such names, writes them in annotations (`A | B`) and uses them as decorators; to call
one outright raises, so that a stub can never take part in a computation.
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, DistributionFinder
from os import PathLike
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

STUB_PACKAGES = frozenset(
    {
        "IPython",
        "blobfile",
        "compressed_tensors",
        "decord",
        "deep_gemm",
        "flashinfer",
        "gguf",
        "interegular",
        "llguidance",
        "modelscope",
        "outlines",
        "prometheus_client",
        "py_spy",
        "pynvml",
        "scipy",
        "sentencepiece",
        "sgl_kernel",
        "soundfile",
        "tiktoken",
        "timm",
        "torchao",
        "torchaudio",
        "torchvision",
        "triton",
        "vllm",
    }
)
# SGLang up to 0.5.6 defines a class and then, without a GPU, takes vLLM's of the same name over it: its own, which
# has a CPU path, is given back instead.
_OWN_FIRST = frozenset({"vllm"})

# Distributions whose version SGLang or transformers asks for once it has found the module.
STUB_VERSIONS = {
    "compressed_tensors": "0.20.1",
    "scipy": "1.17.1",
    "sentencepiece": "0.2.3",
    "tiktoken": "0.14.0",
    "torchao": "0.17.0",
    "torchvision": "0.29.1",
    "triton": "3.9.0",
}

# Called while SGLang's modules are being imported; the result is never used without a GPU.
_DECORATORS = frozenset({"triton.jit", "triton.autotune", "triton.heuristics"})
_EMPTY_VALUES = frozenset({"triton.Config", "triton.language.constexpr"})


class StubCalledError(RuntimeError):
    """SGLang called something that only exists on a GPU machine."""


class StubType(type):
    """The class of every stub attribute: nests, joins in unions, decorates, and refuses to be called."""

    def __getattr__(cls, name: str) -> "StubType":
        if name.startswith("__"):
            raise AttributeError(name)
        nested = make_stub(f"{cls.__name__}.{name}")
        setattr(cls, name, nested)
        return nested

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        name = cls.__name__
        if name in _DECORATORS:
            return _decorate(args)
        if name in _EMPTY_VALUES or ".logger." in name:
            return None
        return super().__call__(*args, **kwargs)

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls


def _decorate(args: tuple[Any, ...]) -> Any:
    if args and isinstance(args[0], FunctionType):
        return args[0]
    return _identity


def _identity(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _refuse(self: object, *args: Any, **kwargs: Any) -> None:
    raise StubCalledError(f"{type(self).__name__} is a stub of the CPU engine and was called")


def make_stub(name: str) -> StubType:
    """Return a class called `name` (dotted) that stands for an attribute of a missing package."""
    return StubType(name, (), {"__init__": _refuse})


class StubModule(ModuleType):
    """A module or package with every attribute that is asked of it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: list[str] = []
        self.__version__ = STUB_VERSIONS.get(name, "0.0.0")
        self.__all__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self.__name__.partition(".")[0] in _OWN_FIRST and (own := _importers_own(name)) is not None:
            return own
        stub = make_stub(f"{self.__name__}.{name}")
        setattr(self, name, stub)
        return stub


def _importers_own(name: str) -> Any:
    """Return what the SGLang module whose import is being served calls `name` already, None where it does not."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _root_of(frame) != "sglang":
        frame = frame.f_back
    return None if frame is None else frame.f_globals.get(name)


class StubDistribution(Distribution):
    """Metadata of a stubbed package: a name and a version."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename: str) -> str | None:
        if filename != "METADATA":
            return None
        return f"Metadata-Version: 2.1\nName: {self._name}\nVersion: {STUB_VERSIONS[self._name]}\n"

    def locate_file(self, path: str | PathLike[str]) -> Path:
        return Path(path)


class StubFinder(DistributionFinder, Loader):
    """Find the packages of `STUB_PACKAGES` that no finder before this one has found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root = fullname.partition(".")[0]
        if root not in STUB_PACKAGES:
            return None
        if root == "triton" and fullname not in sys.modules:
            if _importer_root() == "torch":
                return None
            _settle_torch_without_triton()
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run: a stub module is empty."""

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:
        name = (context.name if context is not None and context.name else "").replace("-", "_").lower()
        return [StubDistribution(name)] if name in STUB_VERSIONS else []


def _importer_root() -> str:
    """Return the top-level package of the code whose import statement is being served."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _root_of(frame) in (__name__, "importlib", "_frozen_importlib"):
        frame = frame.f_back
    return _root_of(frame)


def _root_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _settle_torch_without_triton() -> None:
    """Have torch decide, and remember, that there is no Triton before a stub of that name appears."""
    importlib.import_module("torch._inductor.runtime.triton_compat")
    torch_triton = importlib.import_module("torch.utils._triton")
    torch_triton.has_triton_package()
    torch_triton.has_triton()


def install() -> None:
    """Append the finder, once."""
    if not any(isinstance(finder, StubFinder) for finder in sys.meta_path):
        sys.meta_path.append(StubFinder())
