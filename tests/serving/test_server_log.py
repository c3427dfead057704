"""What a server's log says."""

from pathlib import Path

import pytest

from auxtap.serving.server_log import ServerLog, failure_reason

IGNORED = "[2026-01-01 10:00:00] WARNING registry.py:1: Ignore import error when loading a.b: No module named 'vllm'"
TRACEBACK = """\
[2026-01-01 10:00:01 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "model_runner.py", line 5, in load_model
    raise ValueError("x")
ValueError: Weights of model.layers.0 do not fit
"""
AFTERMATH = """\
[2026-01-01 10:00:02] Received sigquit from a child process. It usually means the child failed.
Traceback (most recent call last):
  File "launch_server.py", line 9, in <module>
RuntimeError: Initialization failed. Please see the error messages above.
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the log is empty"),
        (TRACEBACK + AFTERMATH, "ValueError: Weights of model.layers.0 do not fit"),
        (IGNORED, IGNORED.partition("] ")[2]),
        (
            "Traceback ...\nauxtap.RefusedError: auxtap: refused: layer 9 is out of range\n" + TRACEBACK,
            "auxtap: refused: layer 9 is out of range",
        ),
        (
            "usage: launch_server.py [-h]\nlaunch_server.py: error: unrecognized arguments: --nonsense",
            "launch_server.py: error: unrecognized arguments: --nonsense",
        ),
        (
            "INFO: Started\n"
            "[2026-01-01 10:00:00] ERROR:    [Errno 98] error while attempting to bind on address\n"
            "INFO: bye",
            "ERROR:    [Errno 98] error while attempting to bind on address",
        ),
        ("/env/bin/python: No module named sglang", "/env/bin/python: No module named sglang"),
        (
            "huggingface_hub.errors.HFValidationError: Repo id must be",
            "huggingface_hub.errors.HFValidationError: Repo id must be",
        ),
        ("one\ntwo\n\n", "two"),
    ],
)
def test_reason(text: str, reason: str) -> None:
    assert failure_reason(text.splitlines()) == reason


def test_a_reason_is_cut() -> None:
    assert len(failure_reason(["ValueError: " + "x" * 5000])) <= 400


def test_news_come_a_whole_line_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = ServerLog(path)
    assert log.read_news().phases == ()
    with path.open("a") as file:
        file.write("Load weight be")
        file.flush()
        assert log.read_news().phases == ()
        file.write("gin. avail mem=1\nsomething\nLoad weight end.\n")
        file.flush()
        assert log.read_news().phases == ("loading weights", "weights are loaded")
        assert log.read_news().phases == ()
        file.write("RuntimeError: auxtap: refused: too deep\n")
        file.flush()
        assert log.read_news().refusal == "auxtap: refused: too deep"
    assert log.last_lines(1) == ("RuntimeError: auxtap: refused: too deep",)


def test_a_last_line_without_an_end_counts_as_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("Killed")
    assert ServerLog(path).failure_reason() == "Killed"


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe\nValueError: \xe4\n")
    assert ServerLog(path).failure_reason().startswith("ValueError: ")
