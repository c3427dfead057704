"""One engine case: a server under its setting, and every prompt through the real extraction path."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from auxtap.core.errors import AuxtapError, CheckFailedError
from auxtap.extraction.datasets.reading import read_dataset
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.serving.processes import choose_port
from auxtap.serving.profile import LOOPBACK, LaunchSpec
from auxtap.serving.server import Progress
from auxtap.verification.engine.engine_cases import EngineCase
from auxtap.verification.engine.engine_settings import SAMPLE_TOKENS, SEED, SETTINGS, Setting
from auxtap.verification.engine.fork_server import ForkServer
from auxtap.verification.engine.reference import StoreAndModel
from auxtap.verification.engine.tiny_models import TinyModel

READY_TIMEOUT_S = 300.0
# Tiny models answer within a second; what takes longer than this on a busy machine hangs.
REQUEST_TIMEOUT_S, STALL_TIMEOUT_S = 180.0, 90.0
# Token ids of the tiny models' printable characters.
FIRST_ID, LAST_ID = 0x20, 0x7E
LAST_LINES = 3
_REASONS = 3


@dataclass(frozen=True)
class CaseRun:
    """An extraction that is to be compared, or the problem that it had."""

    case: EngineCase
    model: TinyModel
    pair: StoreAndModel
    ready_s: float
    problem: str | None


def run_case(
    case: EngineCase, model: TinyModel, fork_server: ForkServer, template: LaunchSpec, work: Path, progress: Progress
) -> CaseRun:
    """Serve `model` under the setting of `case` and extract into a store below `work`; a failure is in the result."""
    name = f"{case.model}-{case.setting}"
    setting = SETTINGS[case.setting]
    progress(f"{name}: serving and extracting")
    pair = StoreAndModel(work / name, model.path)
    spec = replace(
        template,
        model_path=str(model.path),
        port=choose_port(LOOPBACK, 0),
        spool=work / f"spool-{name}",
        layers=setting.layers,
        final=setting.final,
        log=template.log.with_name(f"verify-{template.release}-{name}.log"),
        extra_arguments=(*setting.arguments, *model.arguments),
        radix_cache=setting.radix_cache,
    )
    ready_s = 0.0
    try:
        dataset = write_dataset(work / f"{name}.jsonl", setting.lengths, repeated=setting.repeated)
        with fork_server.serve(spec) as server:
            ready_s = server.wait_ready(timeout_s=READY_TIMEOUT_S)
            try:
                extract_all(spec, dataset, pair.store, setting)
            except AuxtapError as error:
                ending = "; ".join(server.log.last_lines(LAST_LINES))
                raise CheckFailedError(f"{error.message}; the server's log ends: {ending}") from None
    except AuxtapError as error:
        return CaseRun(case, model, pair, ready_s, f"{error.message} (log: {spec.log})")
    return CaseRun(case, model, pair, ready_s, missing_evidence(spec.log, setting))


def write_dataset(path: Path, n_tokens: Sequence[int] = SAMPLE_TOKENS, *, repeated: bool = False) -> Path:
    """Write a sample of random token ids for each length, twice when `repeated`; the same every time."""
    dice = random.Random(SEED)  # noqa: S311
    with path.open("w") as file:
        for number, length in enumerate(n_tokens):
            ids = [dice.randint(FIRST_ID, LAST_ID) for _ in range(length)]
            for again in range(2 if repeated else 1):
                file.write(json.dumps({"id": f"random-{number}-{length}-{again}", "input_ids": ids}) + "\n")
    return path


def extract_all(spec: LaunchSpec, dataset: Path, store: Path, setting: Setting) -> None:
    """Extract every sample of `dataset` through the server of `spec`, with the traffic of `setting`.

    Raises:
        CheckFailedError: a sample was not stored, or the tap reports an error.
        AuxtapError: the extraction itself fails.
    """
    assert spec.spool is not None
    samples = read_dataset(dataset)
    job = ExtractionJob(
        samples,
        spec.url,
        spec.spool,
        store,
        concurrency=setting.concurrency or len(samples.samples),
        max_new_tokens=setting.max_new_tokens,
        timeout_s=REQUEST_TIMEOUT_S,
        parts_timeout_s=setting.parts_timeout_s,
        stall_timeout_s=STALL_TIMEOUT_S,
        max_tries=1,
    )
    summary = run_extraction(job)
    if not summary.complete:
        # Samples fail in different ways for one cause: a server that fails may close the connections of others.
        reasons = list(dict.fromkeys(fate.reason for fate in summary.not_stored)) or [summary.tap_last_error]
        raise CheckFailedError(
            f"{summary.stored} of {summary.n_samples} samples stored, {summary.unattributed} batches unattributed, "
            f"{summary.tap_errors} tap errors: {'; '.join(reasons[:_REASONS])}"
        )


def missing_evidence(log: Path, setting: Setting) -> str | None:
    """Return what a server's log does not show although the setting is about it, None when nothing is missing."""
    text = log.read_text(errors="replace")
    for evidence in setting.evidence:
        if re.search(evidence.pattern, text) is None:
            return f"the setting did not happen: {evidence.meaning} (log: {log})"
    return None
