"""Running commands as children: results, errors, and an end that a background job reaches too."""

import json
import signal
import sys
import time
from pathlib import Path

import pytest

from auxtap.commands import child
from auxtap.core.errors import AuxtapError

# Plays `auxtap serve --json`: ready with one line, ended by SIGTERM, which leaves a mark.
SERVE = """
import json, pathlib, signal, sys, time
def end(number, frame):
    pathlib.Path(sys.argv[1]).write_text("ended in order")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print(json.dumps({"url": "here", "arguments": sys.argv[2:]}), flush=True)
time.sleep(60)
"""


def stand_in(monkeypatch: pytest.MonkeyPatch, program: str, *arguments: str) -> None:
    monkeypatch.setattr(child, "_SELF", (sys.executable, "-c", program, *arguments))


def test_a_command_is_ended_in_order_where_interrupts_are_ignored(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in `nohup make demo &`: children inherit SIGINT as ignored, so it would end nothing."""
    stand_in(monkeypatch, SERVE, str(tmp_path / "mark"))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        began = time.monotonic()
        with child.running_command(["serve", "--", "--tp", "2"], lambda line: None) as result:
            assert result == {"url": "here", "arguments": ["serve", "--json", "--", "--tp", "2"]}
        assert time.monotonic() - began < child.STOP_TIMEOUT_S / 2
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "mark").read_text() == "ended in order"


def test_the_error_of_a_command_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; print('error: no such thing\\nhint: do that', file=sys.stderr); sys.exit(5)"
    stand_in(monkeypatch, program)
    with pytest.raises(AuxtapError, match="ended with exit code 5: no such thing") as raised:
        child.result_of(["apply"], lambda line: None)
    assert (raised.value.hint, raised.value.exit_code) == ("do that", 5)
    with (
        pytest.raises(AuxtapError, match="no such thing"),
        child.running_command(["serve"], lambda line: None),
    ):
        pass


def test_progress_and_result_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    result = {"n": 1}
    stand_in(monkeypatch, f"import sys; print('step', file=sys.stderr); print({json.dumps(json.dumps(result))})")
    lines: list[str] = []
    assert child.result_of(["check"], lines.append) == result
    assert lines == ["step"]
