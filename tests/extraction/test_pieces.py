"""Small parts on their own: finite check, admission, what is kept of the server's arguments, sizes."""

import numpy as np
import pytest

from auxtap.commands.extract_places import parse_size
from auxtap.commands.views.extract_view import human_bytes, human_seconds
from auxtap.core.errors import UsageError
from auxtap.extraction.servers.client import clean_arguments
from auxtap.extraction.spool.finite import is_finite
from auxtap.extraction.spool.untrusted import printable

BITS = {"F32": (np.uint32, np.float32), "F16": (np.uint16, np.float16), "BF16": (np.uint16, None)}


@pytest.mark.parametrize("dtype", BITS)
def test_finite_agrees_with_every_bit_pattern(dtype: str) -> None:
    unsigned, floating = BITS[dtype]
    if dtype == "F32":
        values = np.random.default_rng(5).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
        values = np.concatenate([values, np.array([0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x7FC00001], dtype=np.uint32)])
    else:
        values = np.arange(1 << 16, dtype=np.uint16)
    wide = (values.astype(np.uint32) << 16).view(np.float32) if floating is None else values.view(floating)
    good = np.isfinite(wide)
    assert good.any() and not good.all()
    assert is_finite(memoryview(values[good].tobytes()), dtype)
    for value in values[~good][:: max(1, (~good).sum() // 500)]:
        assert not is_finite(memoryview(np.array([0, value, 0], dtype=unsigned).tobytes()), dtype)
    assert is_finite(memoryview(b""), dtype)


def test_server_arguments_are_kept_without_secrets_and_noise() -> None:
    arguments = {
        "model_path": "m", "api_key": "k", "admin_api_key": "k", "ssl_certfile": "c", "internal_states": [{}],
        "port": 3, "tokenizer_path": "t", "empty": None, "huge": "x" * 5000, "rate": float("nan"), "tp_size": 2,
    }  # fmt: skip
    assert clean_arguments(arguments) == {"model_path": "m", "tokenizer_path": "t", "tp_size": 2}


def test_text_from_outside_is_one_printable_line() -> None:
    assert printable("a\x1b[31m\n\tb\ud800" + "c" * 600, 20) == "a [31m b " + "c" * 10
    assert printable(None) == "" and printable(3) == ""


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [("500", 500), ("64G", 64 << 30), ("1.5TiB", 3 << 39), ("2 kb", 2048), ("10MB", 10 << 20), ("7b", 7)],
)
def test_sizes(text: str, n_bytes: int) -> None:
    assert parse_size(text) == n_bytes


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "1.G", "5 parsec", "0.1"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


def test_figures_for_people() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1536, 924 << 30, 5 << 50)] == [
        "0 B", "1023 B", "1.5 KiB", "924.0 GiB", "5120.0 TiB",
    ]  # fmt: skip
    assert [human_seconds(s) for s in (0.04, 59.94, 61, 3725)] == ["0.0 s", "59.9 s", "1 min 1 s", "1 h 2 min"]
