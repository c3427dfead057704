"""The checks of a canary: what must be true of states that no reference is at hand for."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from auxtap.extraction.canary.output_head import OutputHead
from auxtap.extraction.canary.stored_states import PromptStates, Rows
from auxtap.extraction.canary.witness_reports import WitnessReport, digest_bytes

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
FINAL, FINAL_PRENORM = "final", "final_prenorm"
# Error (Frobenius) of the final state as the norm of the one before it, whose weights are fitted to the rows.
NORM_TOLERANCES = {"F32": 1e-3, "BF16": 5e-2, "F16": 2e-2}
# Relative errors (Frobenius, a prompt at a time; and of any single row) that other batch sizes and chunks may bring.
TOLERANCES = {"F32": (1e-4, 1e-3), "BF16": (5e-2, 0.5), "F16": (2e-2, 0.25)}
# Absolute error of a difference of two logits, and relative to the largest of them.
LOGIT_TOLERANCES = {"F32": (1e-3, 1e-3), "BF16": (0.5, 0.05), "F16": (0.1, 0.02)}
# Sums of squares of the same rows on two ranks.
RANK_TOLERANCES = {"F32": 1e-5, "BF16": 1e-2, "F16": 1e-2}
LEAST_NORM_ROWS = 16
SAME_STATE = 1e-3
SHRINKS_TO, GROWS_TO = 0.5, 1e4
# Mean cosine of a captured state with the next: the stream of a transformer goes on from block to block.
LEAST_IN_COMMON = 0.02


@dataclass(frozen=True)
class Check:
    """One check and its outcome: ok, failed or skipped; `detail` has the figures or the reason."""

    name: str
    outcome: str
    detail: str


@dataclass(frozen=True)
class TokenLogprobs:
    """The server's own likeliest next tokens after row `row` of a prompt."""

    index: int
    row: int
    logprobs: Mapping[int, float]


@dataclass(frozen=True)
class Worst:
    """The largest error of a comparison, and where."""

    whole: float
    row: float
    where: str


def compare_prompts(
    pairs: Sequence[tuple[PromptStates, PromptStates]], n_rows: Mapping[int, int] | None = None
) -> Worst:
    """Compare states of the same prompts; `n_rows` bounds the rows of a prompt of the first of each pair."""
    largest_whole, largest_row, where = 0.0, 0.0, ""
    for one, other in pairs:
        end = None if n_rows is None else n_rows[one.index]
        for name, rows in one.rows.items():
            mine, theirs = rows[:end], other.rows[name][:end]
            if mine.shape != theirs.shape:
                return Worst(math.inf, math.inf, f"prompt {one.index} {name}: {len(mine)} and {len(theirs)} rows")
            off = np.linalg.norm(mine - theirs, axis=1)
            sizes = np.maximum(np.linalg.norm(mine, axis=1), 1e-30)
            largest_whole = max(largest_whole, float(np.linalg.norm(off) / np.linalg.norm(sizes)))
            row = int((off / sizes).argmax())
            if (off / sizes)[row] > largest_row:
                largest_row, where = float((off / sizes)[row]), f"prompt {one.index} {name} row {row}"
    return Worst(largest_whole, largest_row, where)


def judge_difference(name: str, worst: Worst, dtype: str, what: str) -> Check:
    """Hold a difference against what the dtype allows."""
    whole, row = TOLERANCES[dtype]
    wrong = not (worst.whole <= whole and worst.row <= row)
    figures = f"at most {worst.whole:.1e} of a prompt (allowed {whole:.0e}), {worst.row:.1e} of a row ({row:.0e})"
    where = f"; worst: {worst.where}" if worst.where and wrong else ""
    return Check(name, FAILED if wrong else OK, f"{what}: {figures}{where}")


def check_rows(prompts: Sequence[PromptStates], wanted: Mapping[int, Sequence[int]], states: Sequence[str]) -> Check:
    """Check that every prompt has a row for each token in each state, all of them finite numbers."""
    by_index = {prompt.index: prompt for prompt in prompts}
    for index, ids in wanted.items():
        prompt = by_index.get(index)
        if prompt is None or list(prompt.ids) != list(ids):
            return Check("rows", FAILED, f"prompt {index}: its ids are not those that were sent")
        for name in states:
            rows = prompt.rows.get(name)
            if rows is None or len(rows) != len(ids):
                found = "none" if rows is None else len(rows)
                return Check("rows", FAILED, f"prompt {index}: {name} has {found} rows of {len(ids)}")
            if not np.isfinite(rows).all():
                return Check("rows", FAILED, f"prompt {index}: {name} holds values that are no numbers")
    total = sum(len(ids) for ids in wanted.values())
    return Check("rows", OK, f"{total} rows in each of {len(states)} states of {len(wanted)} prompts")


def check_distinct(prompts: Sequence[PromptStates]) -> Check:
    """Check that no two captured states are the same."""
    closest, which = math.inf, ""
    for prompt in prompts:
        names = list(prompt.rows)
        for position, one in enumerate(names):
            for other in names[position + 1 :]:
                size = float(np.linalg.norm(prompt.rows[one])) or 1e-30
                off = float(np.linalg.norm(prompt.rows[one] - prompt.rows[other])) / size
                if off < closest:
                    closest, which = off, f"{one} and {other} of prompt {prompt.index}"
    if closest < SAME_STATE:
        return Check("distinct", FAILED, f"{which} are the same state ({closest:.1e} apart)")
    return Check("distinct", OK, f"the closest, {which}, are {closest:.1e} apart")


def check_growth(prompts: Sequence[PromptStates]) -> Check:
    """Check that states do not shrink with depth, and that each has something in common with the next."""
    names = [name for name in prompts[0].rows if name not in (FINAL, FINAL_PRENORM)]
    sizes = {
        name: float(np.median(np.concatenate([_sizes(prompt.rows[name]) for prompt in prompts]))) for name in names
    }
    text = ", ".join(f"{name} {size:.3g}" for name, size in sizes.items())
    if not all(size > 0 for size in sizes.values()):
        return Check("growth", FAILED, f"a state is zero: {text}")
    for one, other in itertools.pairwise(names):
        if not SHRINKS_TO <= sizes[other] / sizes[one] <= GROWS_TO:
            return Check("growth", FAILED, f"{other} is not the stream that {one} was: median sizes {text}")
        cosine = float(np.mean(np.concatenate([_cosines(prompt.rows[one], prompt.rows[other]) for prompt in prompts])))
        if cosine < LEAST_IN_COMMON:
            return Check(
                "growth", FAILED, f"{other} has nothing in common with {one} (cosine {cosine:.3f}): residual missing?"
            )
    return Check("growth", OK, f"median sizes of rows: {text}")


def check_norm(prompts: Sequence[PromptStates], dtype: str) -> Check:
    """Check that the final state is a norm of the one before it: one weight a column for all rows.

    A root-mean-square norm is tried, then one that takes the mean off and adds a bias.
    """
    before = np.concatenate([prompt.rows[FINAL_PRENORM] for prompt in prompts]).astype(np.float64)
    after = np.concatenate([prompt.rows[FINAL] for prompt in prompts]).astype(np.float64)
    if len(before) < LEAST_NORM_ROWS:
        return Check("norm", SKIPPED, f"{len(before)} rows are too few to tell a norm from chance")
    scaled = before / np.sqrt(np.square(before).mean(1, keepdims=True))
    weights = (scaled * after).sum(0) / np.maximum(np.square(scaled).sum(0), 1e-30)
    centred = before - before.mean(1, keepdims=True)
    centred /= np.maximum(np.sqrt(np.square(centred).mean(1, keepdims=True)), 1e-30)
    middle, bias = centred - centred.mean(0), after.mean(0)
    slopes = (middle * (after - bias)).sum(0) / np.maximum(np.square(middle).sum(0), 1e-30)
    size = float(np.linalg.norm(after)) or 1e-30
    off = min(float(np.linalg.norm(found - after)) / size for found in (scaled * weights, middle * slopes + bias))
    text = f"the final state is a norm of the one before it within {off:.1e} ({len(before)} rows)"
    if off <= NORM_TOLERANCES[dtype]:
        return Check("norm", OK, text)
    return Check("norm", FAILED, f"{FINAL} is no norm of {FINAL_PRENORM}: off {off:.1e}; one of them is another state")


def _sizes(rows: Rows) -> Rows:
    sizes: Rows = np.linalg.norm(rows, axis=1)
    return sizes


def _cosines(one: Rows, other: Rows) -> Rows:
    cosines: Rows = (one * other).sum(1) / np.maximum(_sizes(one) * _sizes(other), 1e-30)
    return cosines


def check_ranks(
    prompts: Sequence[PromptStates],
    witness_reports: Sequence[WitnessReport],
    n_witnesses: int,
    n_stages: int,
    dtype: str,
    *,
    several_hosts: bool = False,
) -> Check:
    """Check that every rank of a TP group holds the rows that its writer wrote; on other hosts they have no spool."""
    if n_witnesses == 0:
        return Check("ranks", SKIPPED, "one rank holds the rows of a prompt: there is none to compare it with")
    expected = len(prompts) * n_witnesses * n_stages
    if several_hosts and not witness_reports:
        return Check("ranks", SKIPPED, "the other ranks run on other hosts and have no spool here")
    if len(witness_reports) != expected and not several_hosts:
        return Check("ranks", FAILED, f"{len(witness_reports)} of {expected} witness reports came: ranks are missing")
    by_index = {prompt.index: prompt for prompt in prompts}
    worst, equal, compared = 0.0, 0, 0
    for seen in witness_reports:
        prompt = by_index[seen.index]
        for name, digest in seen.digests.items():
            compared += 1
            if digest_bytes(digest.partition(":")[0], prompt.data[name]) == digest:
                equal += 1
            elif name not in prompt.rows:
                return Check("ranks", FAILED, f"rank {seen.tp} has other {name} of prompt {seen.index}")
            else:
                square = float(np.square(prompt.rows[name].astype(np.float64)).sum())
                off = abs(seen.squares.get(name, math.inf) - square) / max(square, 1e-30)
                worst = max(worst, off)
                if off > RANK_TOLERANCES[dtype]:
                    return Check(
                        "ranks",
                        FAILED,
                        f"rank {seen.tp} has another {name} of prompt {seen.index} (size {off:.1e} off): not reduced?",
                    )
    return Check("ranks", OK, f"{equal} of {compared} tensors equal to the last bit, the others within {worst:.1e}")


def check_logits(prompts: Sequence[PromptStates], said: Sequence[TokenLogprobs], head: OutputHead, dtype: str) -> Check:
    """Check that the final state times the output head gives the server's own logprobs.

    Differences between tokens are compared: the logarithm of the sum over the vocabulary falls out of them.
    """
    by_index = {prompt.index: prompt for prompt in prompts}
    absolute, relative = LOGIT_TOLERANCES[dtype]
    worst, compared = 0.0, 0
    for each in said:
        if len(each.logprobs) < 2:
            continue
        tokens = sorted(each.logprobs, key=lambda token: -each.logprobs[token])
        logits = head.rows(tokens) @ by_index[each.index].rows[FINAL][each.row]
        given = np.array([each.logprobs[token] for token in tokens], dtype=np.float64)
        off = float(np.abs((logits - logits[0]) - (given - given[0])).max())
        compared += 1
        worst = max(worst, off)
        allowed = absolute + relative * float(np.abs(logits).max())
        if not off <= allowed:
            place = f"row {each.row} of prompt {each.index}"
            text = (
                f"{place}: logits are {off:.2g} from the server's (allowed {allowed:.2g}): another state, or pre-norm?"
            )
            return Check("logits", FAILED, text)
    if not compared:
        return Check("logits", FAILED, "the server named no likeliest tokens")
    return Check(
        "logits", OK, f"{head.name} times the final state gives the logprobs of {compared} rows, off {worst:.1e}"
    )
