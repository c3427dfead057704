"""`auxtap extract`: a dataset through a tapped server into a store."""

import contextlib
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auxtap.core.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from auxtap.extraction.job import StopRequest
    from auxtap.extraction.samples import Dataset

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)
_EXPONENTS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def extract(
    dataset: Annotated[
        Path, typer.Argument(metavar="DATASET", help="JSONL of id and input_ids, or of id and messages.")
    ],
    server: Annotated[str, typer.Option(metavar="URL", help="URL of the tapped server.")],
    spool: Annotated[Path, typer.Option(help="Folder that the server's tap writes into.")],
    out: Annotated[Path, typer.Option(metavar="STORE", help="Store to begin or to go on with.")],
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Tokenizer folder, needed for messages.")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that the tokenizer folder brings along.")
    ] = False,
    part_format: Annotated[str, typer.Option("--format", help="safetensors or pt.")] = "safetensors",
    max_new_tokens: Annotated[int, typer.Option(min=0, max=1, help="Tokens to generate after each prompt.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, max=1024, help="Requests in flight at most.")] = 16,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one request.")] = 600.0,
    parts_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds for a sample's parts after the server has answered.")
    ] = 60.0,
    stall_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds without a sign of life after which a server is given up.")
    ] = 120.0,
    tries: Annotated[int, typer.Option(min=1, max=99, help="Tries a sample at most.")] = 3,
    max_spool_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Spool to use, such as 64G. [default: 80 % of what is free]")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> int:
    """Extract hidden states into a store; run again, it continues."""
    from auxtap.extraction.driver import ExtractionJob, StopRequest, run_extraction
    from auxtap.ui import extract_view

    job = ExtractionJob(
        dataset=load_dataset(dataset, tokenizer, trust_remote_code=trust_remote_code),
        server_url=server,
        spool=spool,
        store=out,
        part_format=part_format,
        max_new_tokens=max_new_tokens,
        concurrency=concurrency,
        timeout_s=timeout,
        parts_timeout_s=parts_timeout,
        stall_timeout_s=stall_timeout,
        max_tries=tries,
        max_spool_bytes=parse_size(max_spool_bytes) if max_spool_bytes is not None else None,
    )
    stop = StopRequest()
    with extract_view.extraction_progress() as observe, stop_signals(stop):
        summary = run_extraction(job, observe, stop=stop)
    extract_view.show_summary(summary, out, as_json=as_json)
    if summary.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.DONE if summary.complete else ExitCode.CHECK_FAILED


def load_dataset(path: Path, tokenizer: Path | None, *, trust_remote_code: bool = False) -> "Dataset":
    """Read a dataset, with the tokenizer in that folder when one is given.

    Raises:
        ExtractionError: the dataset or the tokenizer is not usable.
        UsageError: messages and no tokenizer, or no chat template.
    """
    from auxtap.extraction.samples import read_dataset
    from auxtap.extraction.tokens import load_tokenizer

    if tokenizer is None:
        return read_dataset(path)
    return read_dataset(path, load_tokenizer(tokenizer, trust_remote_code=trust_remote_code))


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
        raise UsageError(f"not a size: {text!r}", hint="such as --max-spool-bytes 64G")
    return n_bytes
