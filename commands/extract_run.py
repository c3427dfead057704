"""Carry out an extraction as a person watches it: canaries, progress, logs and metrics, and ways to stop."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from auxtap.core.errors import AuxtapError, ExitCode, ExtractionError, UsageError

if TYPE_CHECKING:
    from auxtap.extraction.run.job import ExtractionJob, Observer, StopRequest
    from auxtap.extraction.run.reporting import JsonLog


def send_canaries(job: "ExtractionJob", n_prompts: int) -> None:
    """Check each server's states before the many prompts go out; the mass run does not start on a failure.

    Raises:
        IntegrityError: a check failed.
    """
    if not n_prompts:
        return
    from auxtap.commands import canary
    from auxtap.commands.views import console

    for place in job.places:
        report = canary.watch_canary(place, max(2, n_prompts), job.dataset, timeout_s=job.timeout_s)
        if report.holds:
            console.say(report.in_a_line())
        else:
            canary.show_canary(report, to_stderr=True)
        report.require()


def carry_out(job: "ExtractionJob", name: str, *, log_json: str | None, metrics_port: int | None, as_json: bool) -> int:
    """Run a job, watched as asked for, and return the exit code."""
    from auxtap.commands.views import extract_view
    from auxtap.extraction.run.driver import StopRequest, run_extraction
    from auxtap.extraction.run.reporting import observe_all

    stop = StopRequest()
    with contextlib.ExitStack() as stack:
        observers, log = open_observers(stack, log_json, metrics_port)
        show = stack.enter_context(extract_view.extraction_progress())
        stack.enter_context(stop_signals(stop))
        try:
            summary = run_extraction(job, observe_all([show, *observers]), stop=stop)
        except AuxtapError as error:
            if log is not None:
                log.write("error", {"text": error.message, "hint": error.hint})
            raise
        if log is not None:
            log.write("summary", extract_view.summary_record(summary, name))
    extract_view.show_summary(summary, name, as_json=as_json)
    if summary.stopped:
        raise ExtractionError(f"stopped: {summary.stopped}", hint="mend the cause, then run the same command again")
    if summary.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.DONE if summary.complete else ExitCode.CHECK_FAILED


def open_observers(
    stack: contextlib.ExitStack, log_json: str | None, metrics_port: int | None
) -> "tuple[list[Observer], JsonLog | None]":
    """Open what else is to be told of a run: a JSON log, metrics.

    Raises:
        UsageError: the log cannot be written, the port is taken, or prometheus-client is not installed.
    """
    from auxtap.commands.views import console
    from auxtap.extraction.run.reporting import JsonLog, Metrics

    observers: list[Observer] = []
    log = None
    if log_json is not None:
        log = JsonLog(stack.enter_context(_open_log(log_json)))
        observers.append(log)
    if metrics_port is not None:
        metrics = Metrics(metrics_port)
        stack.callback(metrics.close)
        observers.append(metrics)
        console.say(f"metrics on http://127.0.0.1:{metrics.port}/metrics")
    return observers, log


@contextlib.contextmanager
def _open_log(name: str) -> Iterator[TextIO]:
    if name == "-":
        yield sys.stderr
        return
    try:
        file = Path(name).open("a")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UsageError(
            f"cannot write the log {name}: {error.strerror}", hint="name a file you may write, or - for stderr"
        ) from None
    with file:
        yield file


@contextlib.contextmanager
def stop_signals(stop: "StopRequest") -> Iterator[None]:
    """Let the first Ctrl-C (or SIGTERM) finish what is in flight, the second stop now, the third break off."""
    from auxtap.commands.views import console

    def escalate(number: int, frame: object) -> None:
        if stop.now.is_set():
            raise KeyboardInterrupt
        stop.escalate()
        what = "stopping now" if stop.now.is_set() else "finishing what is in flight; once more stops at once"
        console.say(what)

    before = {number: signal.signal(number, escalate) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
