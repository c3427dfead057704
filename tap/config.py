"""What a tapped server was told through its environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from . import protocol

DEFAULT_MAX_PENDING_BYTES = 2 << 30
DEFAULT_MAX_WAIT_S = 60.0


class RefusedError(RuntimeError):
    """The tap cannot give right states under these settings; the server must not start."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"auxtap: refused: {reason}")


@dataclass(frozen=True)
class TapConfig:
    """Settings of one server.

    `layers` are capture indices, ascending; `final` says which final states are taken. At most `max_pending_bytes` of
    host memory hold copied rows; a forward waits at most `max_wait_s` for the writer before the sample is given up.
    """

    spool: Path
    layers: tuple[int, ...]
    final: str
    max_pending_bytes: int
    max_wait_s: float
    release: str
    patch_digest: str
    source_digest: str
    way: str

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "TapConfig":
        """Read the settings.

        Raises:
            RefusedError: a variable is missing or not of its form.
        """
        return cls(
            spool=Path(environment.get(protocol.ENV_SPOOL, "")),
            layers=_layers(environment.get(protocol.ENV_LAYERS, "")),
            final=_final(environment.get(protocol.ENV_FINAL) or protocol.POST_NORM),
            max_pending_bytes=int(_positive(environment, protocol.ENV_MAX_PENDING_BYTES, DEFAULT_MAX_PENDING_BYTES)),
            max_wait_s=_positive(environment, protocol.ENV_MAX_WAIT_S, DEFAULT_MAX_WAIT_S),
            release=environment.get(protocol.ENV_RELEASE, ""),
            patch_digest=environment.get(protocol.ENV_PATCH_DIGEST, ""),
            source_digest=environment.get(protocol.ENV_SOURCE_DIGEST, ""),
            way=environment.get(protocol.ENV_WAY, protocol.PATCH_WAY),
        )


def _layers(text: str) -> tuple[int, ...]:
    try:
        layers = tuple(sorted(int(item) for item in text.split(",") if item.strip()))
    except ValueError:
        raise RefusedError(f"{protocol.ENV_LAYERS} is not a list of capture indices: {text!r}") from None
    if len(set(layers)) != len(layers):
        raise RefusedError(f"{protocol.ENV_LAYERS} names a capture index twice: {text!r}")
    return layers


def _final(text: str) -> str:
    if text not in protocol.FINAL_TENSORS:
        known = ", ".join(protocol.FINAL_TENSORS)
        raise RefusedError(f"{protocol.ENV_FINAL} is {text!r}, none of {known}")
    return text


def _positive(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise RefusedError(f"{name} is not a positive number: {text!r}")
    return value
