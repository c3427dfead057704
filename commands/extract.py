"""`auxtap extract`: a dataset through a tapped server into a store."""

from pathlib import Path
from typing import Annotated

import typer

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
from auxtap.commands.extract_places import find_store, pair_servers, parse_shard, parse_size
from auxtap.core.errors import ExitCode, UsageError

FORMAT_HELP = "safetensors or pt; a trainer's, such as specforge, is exported to STORE.FORMAT as well."


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
    from auxtap.commands import export, extract_run, planning
    from auxtap.extraction.run.job import ExtractionJob, RunOptions

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
    options = RunOptions(
        part_format=part_format,
        max_new_tokens=max_new_tokens,
        concurrency=concurrency,
        drain_threads=drain_threads,
        timeout_s=timeout,
        parts_timeout_s=parts_timeout,
        stall_timeout_s=stall_timeout,
        wait_for_server_s=wait_for_server,
        max_tries=tries,
        max_failures=max_failures,
        max_spool_bytes=spool_limit,
        max_bytes=store_limit,
        reserve_bytes=kept_free,
    )
    if node is not None:
        from auxtap.commands import node_serve

        if places or catalog is not None:
            raise UsageError("--server, --spool and --catalog exclude --node", hint="the node's own are used")
        samples = load_dataset(dataset, choice, rules)
        watch = node_serve.Watch(out, log_json, metrics_port, as_json=as_json)
        return node_serve.extract_on_node(node, samples, options, watch, shard=shard, canary=canary)
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
        **vars(options),
    )
    if trainer is not None:
        export.check_servers(job.places, trainer)
    extract_run.send_canaries(job, canary)
    code = extract_run.carry_out(job, out or "", log_json=log_json, metrics_port=metrics_port, as_json=as_json)
    if trainer is not None and code != ExitCode.INTERRUPTED:
        export.export_beside(job.store, trainer, as_json=as_json)
    return code
