"""`auxtap extract`: a dataset through a tapped server into a store."""

import contextlib
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from auxtap.commands.context import cache_layout
from auxtap.commands.dataset import (
    DatasetPath,
    Dedupe,
    HoldoutShare,
    MaxTokens,
    OnBad,
    Rewritten,
    TemplateArgs,
    TokenizerChoice,
    TokenizerFolder,
    TooLong,
    TrustRemoteCode,
    load_dataset,
    make_rules,
)
from auxtap.core.errors import AuxtapError, ExitCode, ExtractionError, UsageError

if TYPE_CHECKING:
    from auxtap.extraction.job import ExtractionJob, Observer, ServerPlace, Shard, StopRequest
    from auxtap.extraction.reporting import JsonLog

FORMAT_HELP = "safetensors or pt; a trainer's, such as specforge, is exported to STORE.FORMAT as well."
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)
_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def extract(
    dataset: DatasetPath,
    server: Annotated[
        list[str] | None, typer.Option(metavar="URL", help="URL of a tapped server, or of a router; may be repeated.")
    ] = None,
    spool: Annotated[
        list[Path] | None,
        typer.Option(help="Folder that the server's tap writes into; one for each --server, or all of the only one's."),
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="STORE", help="Store to begin or to go on with: a folder, or an fsspec URL.")
    ] = None,
    node: Annotated[
        str | None, typer.Option(metavar="NAME", help="Extract on the node of nodes/NAME.toml, watched from here.")
    ] = None,
    catalog: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Ledger of a store at a URL. [default: a folder in the cache]")
    ] = None,
    tokenizer: TokenizerFolder = None,
    trust_remote_code: TrustRemoteCode = False,
    template_args: TemplateArgs = None,
    rewritten: Rewritten = "refuse",
    on_bad: OnBad = "stop",
    max_tokens: MaxTokens = None,
    too_long: TooLong = "cut",
    dedupe: Dedupe = False,
    holdout: HoldoutShare = None,
    part_format: Annotated[str, typer.Option("--format", help=FORMAT_HELP)] = "safetensors",
    shard: Annotated[
        str | None, typer.Option(metavar="I/N", help="Take every N-th sample only, into a store of its own.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=0, max=1, help="Tokens to generate after each prompt.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, max=1024, help="Requests in flight at most, a server.")] = 16,
    drain_threads: Annotated[int, typer.Option(min=1, max=64, help="Threads that bring parts into the store.")] = 4,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one request.")] = 600.0,
    parts_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds for a sample's parts after the server has answered.")
    ] = 60.0,
    stall_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds without a sign of life after which a server is taken for gone.")
    ] = 120.0,
    wait_for_server: Annotated[
        float, typer.Option(min=0.0, help="Seconds to wait for a server to come back when all are gone.")
    ] = 60.0,
    tries: Annotated[int, typer.Option(min=1, max=99, help="Tries a sample at most.")] = 3,
    max_failures: Annotated[
        int | None, typer.Option(min=0, help="Stop when more samples than this have failed. [default: never]")
    ] = None,
    max_spool_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Spool to use, such as 64G. [default: 80 % of what is free]")
    ] = None,
    max_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Size of the whole store at most. [default: no bound]")
    ] = None,
    reserve: Annotated[str, typer.Option(metavar="SIZE", help="Space that stays free beside the store.")] = "256M",
    canary: Annotated[
        int, typer.Option(min=0, max=256, help="Prompts to check the server's states with before; 0: none.")
    ] = 4,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it takes, and send nothing but a trial.")
    ] = False,
    calibrate: Annotated[int, typer.Option(min=0, help="Samples of the trial for --dry-run with a server.")] = 8,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Model folder to plan for, for --dry-run without a server.")
    ] = None,
    hidden_size: Annotated[int | None, typer.Option(help="Hidden size to plan for.")] = None,
    layers: Annotated[str | None, typer.Option(help="Capture indices to plan for, such as 3,31,59.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Dtype to plan for, such as bfloat16.")] = None,
    log_json: Annotated[
        str | None, typer.Option(metavar="FILE", help="Append events as JSON lines; - is stderr.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Offer Prometheus metrics on this port of this machine.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> int:
    """Extract hidden states into a store; run again, it continues."""
    from auxtap.commands import export, planning
    from auxtap.extraction.job import ExtractionJob

    spool_limit = parse_size(max_spool_bytes) if max_spool_bytes is not None else None
    store_limit = parse_size(max_bytes) if max_bytes is not None else None
    kept_free = 0 if reserve.strip() == "0" else parse_size(reserve)
    places = pair_servers(server or [], spool or [])
    where = find_store(out, catalog) if out is not None and node is None else None
    choice = TokenizerChoice(tokenizer, trust_remote_code, template_args, rewritten)
    rules = make_rules(on_bad, max_tokens, too_long, dedupe, holdout)
    local = node is None and (where is None or where.url is None)
    part_format, trainer = export.split_format(part_format, local=local)
    if dry_run:
        supposed = planning.Supposed(model, hidden_size, layers, dtype)
        trial = planning.Trial(calibrate, part_format, concurrency, drain_threads, timeout, parts_timeout)
        return planning.show_dry_run(
            dataset,
            choice,
            rules,
            places,
            where,
            supposed,
            trial,
            as_json=as_json,
            max_spool_bytes=spool_limit,
            max_bytes=store_limit,
            reserve_bytes=kept_free,
        )
    options: dict[str, Any] = {
        "part_format": part_format,
        "max_new_tokens": max_new_tokens,
        "concurrency": concurrency,
        "drain_threads": drain_threads,
        "timeout_s": timeout,
        "parts_timeout_s": parts_timeout,
        "stall_timeout_s": stall_timeout,
        "wait_for_server_s": wait_for_server,
        "max_tries": tries,
        "max_failures": max_failures,
        "max_spool_bytes": spool_limit,
        "max_bytes": store_limit,
        "reserve_bytes": kept_free,
    }
    if node is not None:
        from auxtap.commands import node_serve

        if places or catalog is not None:
            raise UsageError("--server, --spool and --catalog exclude --node", hint="the node's own are used")
        samples = load_dataset(dataset, choice, rules)
        options["shard"] = shard
        options["canary"] = canary
        watch = node_serve.Watch(out, log_json, metrics_port, as_json=as_json)
        return node_serve.extract_on_node(node, samples, options, watch)
    if not places or where is None:
        missing = "--server and --spool" if not places else "--out"
        raise UsageError(
            f"{missing} are needed" if not places else f"{missing} is needed", hint="or --node NAME, or --dry-run"
        )
    first, *others = places
    job = ExtractionJob(
        dataset=load_dataset(dataset, choice, rules),
        server_url=first.url,
        spool=first.spools[0],
        extra_spools=first.spools[1:],
        more_servers=tuple(others),
        store=where.folder,
        samples_url=where.url,
        shard=parse_shard(shard) if shard is not None else None,
        **options,
    )
    if trainer is not None:
        export.check_server([job.spool, *job.extra_spools], trainer)
    send_canaries(job, canary)
    code = carry_out(job, out or "", log_json=log_json, metrics_port=metrics_port, as_json=as_json)
    if trainer is not None and code != ExitCode.INTERRUPTED:
        export.export_beside(job.store, trainer, as_json=as_json)
    return code


def send_canaries(job: "ExtractionJob", n_prompts: int) -> None:
    """Check each server's states before the many prompts go out; the mass run does not start on a failure.

    Raises:
        IntegrityError: a check failed.
    """
    if not n_prompts:
        return
    from auxtap.commands import canary
    from auxtap.ui import console

    for place in job.places:
        report = canary.watch_canary(place, max(2, n_prompts), job.dataset, timeout_s=job.timeout_s)
        if report.holds:
            console.say(report.in_a_line())
        else:
            canary.show_canary(report, to_stderr=True)
        report.require()


def carry_out(job: "ExtractionJob", name: str, *, log_json: str | None, metrics_port: int | None, as_json: bool) -> int:
    """Run a job, watched as asked for, and return the exit code."""
    from auxtap.extraction.driver import StopRequest, run_extraction
    from auxtap.extraction.reporting import observe_all
    from auxtap.ui import extract_view

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
    from auxtap.extraction.reporting import JsonLog, Metrics
    from auxtap.ui import console

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


def pair_servers(urls: list[str], spools: list[Path]) -> "list[ServerPlace]":
    """Give every server its spool, or the only server all of them.

    Raises:
        UsageError: the numbers do not go together.
    """
    from auxtap.extraction.job import ServerPlace

    if len(urls) == 1 and spools:
        return [ServerPlace(urls[0], tuple(spools))]
    if len(urls) != len(spools):
        raise UsageError(
            f"{len(urls)} times --server and {len(spools)} times --spool",
            hint="give one --spool for each --server in the same order; a single server may have several",
        )
    return [ServerPlace(url, (path,)) for url, path in zip(urls, spools, strict=True)]


@dataclass(frozen=True)
class StorePlace:
    """Where a store is: its folder, and the URL of its samples when they are not in it."""

    folder: Path
    url: str | None


def find_store(out: str, catalog: Path | None) -> StorePlace:
    """Return the place of a store that was named by a path or a URL.

    Raises:
        UsageError: a catalog is named for a folder.
    """
    if "://" not in out:
        if catalog is not None:
            raise UsageError("--catalog is for stores at a URL", hint="a store in a folder keeps its ledger there")
        return StorePlace(Path(out), None)
    from auxtap.core.files import sha256_bytes

    url = out.rstrip("/")
    folder = catalog or cache_layout().root / "stores" / sha256_bytes(url.encode())[:16]
    return StorePlace(folder, url)


def parse_shard(text: str) -> "Shard":
    """Read `I/N`.

    Raises:
        UsageError: it is no such thing.
    """
    from auxtap.extraction.job import Shard

    match = re.fullmatch(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", text)
    if match is None or int(match[1]) > int(match[2]):
        raise UsageError(f"not a shard: {text!r}", hint="such as --shard 1/4, counted from 1")
    return Shard(int(match[1]), int(match[2]))


@contextlib.contextmanager
def stop_signals(stop: "StopRequest") -> Iterator[None]:
    """Let the first Ctrl-C (or SIGTERM) finish what is in flight, the second stop now, the third break off."""
    from auxtap.ui import console

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


def parse_size(text: str) -> int:
    """Read a number of bytes such as `500000`, `64G` or `1.5TiB`; the letters are powers of 1024.

    Raises:
        UsageError: it is none, or zero.
    """
    match = _SIZE.fullmatch(text.strip())
    n_bytes = 0
    if match is not None:
        unit = (match[2] or "").lower().removesuffix("i")
        n_bytes = int(float(match[1]) * 1024 ** _EXPONENTS[unit])
    if n_bytes < 1:
        raise UsageError(f"not a size: {text!r}", hint="such as 64G")
    return n_bytes
