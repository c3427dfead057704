"""Each known wrong behaviour is put into a real patched server: the proof must fail, and must name it."""

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from auxtap.core.errors import AuxtapError
from auxtap.serving.engine_env import EngineEnvironment
from auxtap.serving.profile import LaunchSpec
from auxtap.tests.verification.test_engine_canary import FAULTS as CANARY_FAULTS
from auxtap.verification.engine.engine_cases import EngineCase
from auxtap.verification.engine.engine_report import RIGHT, judge
from auxtap.verification.engine.engine_run import extract_all, write_dataset
from auxtap.verification.engine.engine_settings import RANK_FLAGS, STAGE_FLAGS, Setting
from auxtap.verification.engine.fork_server import ForkServer
from auxtap.verification.engine.reference import Comparison, StoreAndModel, compare_stores

pytestmark = pytest.mark.engine

NOT_INJECTED = {"prefix_hit"}
PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
INJECT = Path(__file__).with_name("inject_fault_script.py")
PLAIN = Setting("plain", "a few prompts", lengths=(40, 7, 1, 33), parts_timeout_s=3.0)
ALIKE = replace(PLAIN, name="alike", lengths=(9, 9, 9, 9))
CHUNKED = replace(PLAIN, name="chunked", arguments=("--chunked-prefill-size", "16"))
RANKS = replace(PLAIN, name="ranks", arguments=RANK_FLAGS)
STAGES = replace(PLAIN, name="stages", arguments=STAGE_FLAGS)
# No fault in the code: a server that was started with its radix cache on.
CACHED = replace(PLAIN, name="cached", radix_cache=True, repeated=True, concurrency=1)


@dataclass(frozen=True)
class Caught:
    """What the proof must say of a fault: of each state that it spoils, or of the extraction as a whole."""

    setting: Setting = PLAIN
    states: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


EXPECTED: Mapping[str, Caught] = {
    "layer_off_by_one": Caught(
        states={
            "hidden.2": "holds hidden_states[3] (of layer 3, one layer off)",
            "hidden.3": "holds hidden_states[4] (of layer 4, one layer off)",
            "hidden.6": "holds hidden_states[7] (of layer 7, one layer off)",
        }
    ),
    "swapped_layers": Caught(
        states={"hidden.2": "holds hidden_states[6] (of layer 6)", "hidden.6": "holds hidden_states[2] (of layer 2)"}
    ),
    "missing_residual": Caught(
        states={f"hidden.{i}": f"the residual is missing: it is what block {i - 1}'s MLP adds" for i in (2, 3, 6)}
    ),
    "missing_block_output": Caught(
        states={f"hidden.{i}": f"it is the residual alone: block {i - 1}'s MLP is missing" for i in (2, 3, 6)}
    ),
    "pre_norm": Caught(states={"final": "before the final norm, not after it"}),
    "aliased_storage": Caught(
        states={"hidden.2": "holds hidden_states[6] (of layer 6)", "hidden.3": "holds hidden_states[6] (of layer 6)"}
    ),
    "unreduced_partial_sum": Caught(
        RANKS, {f"hidden.{i}": "it is not reduced: rank 0's partial sum of 2" for i in (2, 3, 6)}
    ),
    "padded_rows_kept": Caught(problem="has input_ids as I64 [8], not I64 [7]"),
    "neighbours_rows": Caught(problem="holds states of another prompt"),
    "neighbours_states": Caught(states=dict.fromkeys(("hidden.2", "hidden.3", "hidden.6", "final"), "row 0 holds row")),
    "first_rows_for_all": Caught(problem="holds states of another prompt"),
    "swapped_requests": Caught(ALIKE, problem="holds states of another prompt"),
    "lost_chunk": Caught(CHUNKED, problem="only 1 of 1 parts are begun"),
    "unwritten_chunk": Caught(
        CHUNKED, dict.fromkeys(("hidden.2", "final"), "zero: a chunk or padding that was never written")
    ),
    "prefix_hit": Caught(CACHED, problem="the rows before came from the prefix cache"),
    # The extractor misses the part, or the tap says at the stage's next batch that this one never came by.
    "missing_stage": Caught(STAGES, problem="only 1 of 2 parts are ready|its forward never reached the tap"),
    "stage_without_its_layer": Caught(STAGES, problem="hold layers [2, 6], not [2, 3, 6] and the final state"),
    "nan": Caught(problem="NaN"),
    "lower_precision": Caught(states={"hidden.3": "rounded as bfloat16 rounds"}),
    "truncated_file": Caught(problem="bytes, not"),
    "flipped_bit": Caught(problem="digest"),
}


def test_every_fault_that_can_be_put_in_is_expected_to_be_caught() -> None:
    defined = [
        node.name
        for node in ast.parse(INJECT.read_text()).body
        if isinstance(node, ast.FunctionDef) and [ast.unparse(each) for each in node.decorator_list] == ["fault"]
    ]
    assert sorted(defined) == sorted(EXPECTED.keys() - NOT_INJECTED)
    assert len(defined) >= 12


def fault_table() -> str:
    """Every fault, what it does, and what is said of it; by the canary too where that needs no reference."""
    tales = {
        node.name: ast.get_docstring(node) or ""
        for node in ast.parse(INJECT.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    tales["prefix_hit"] = "The server runs with its radix cache on, and a prompt comes twice."
    by_canary = {name: f"`{check}` fails" for name, _, check, _ in CANARY_FAULTS}
    lines = ["| fault | what is wrong | the proof says | the canary says |", "| --- | --- | --- | --- |"]
    for name, caught in EXPECTED.items():
        said = caught.problem.replace("|", " or ") or "; ".join(
            f"{state}: {text}" for state, text in list(caught.states.items())[:1]
        )
        lines.append(f"| {name} | {tales[name]} | {said} | {by_canary.get(name, '')} |")
    return "\n".join(lines) + "\n"


def test_the_page_tells_of_every_fault() -> None:
    assert PAGE.read_text().endswith(f"\n{fault_table()}")


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Path | str]:
    """What became of each extraction: a store, or the message of its failure."""
    return {}


@pytest.mark.parametrize("name", ["none", *EXPECTED])
def test_the_extraction_with_a_fault(
    name: str,
    outcomes: dict[str, Path | str],
    fork_server: ForkServer,
    make_spec: Callable[..., LaunchSpec],
    tmp_path: Path,
) -> None:
    caught = EXPECTED.get(name, Caught())
    setting = caught.setting
    spec = make_spec(
        extra_arguments=setting.arguments,
        extra_environment={"INJECTED_FAULT": name},
        radix_cache=setting.radix_cache,
    )
    injected = name in EXPECTED.keys() - NOT_INJECTED
    store = tmp_path / "store"
    dataset = write_dataset(tmp_path / "dataset.jsonl", setting.lengths, repeated=setting.repeated)
    with fork_server.serve(spec, first=INJECT if injected else None) as server:
        server.wait_ready(timeout_s=120)
        try:
            extract_all(spec, dataset, store, setting)
        except AuxtapError as error:
            outcomes[name] = error.message
        else:
            outcomes[name] = store
    outcome = outcomes[name]
    if caught.problem:
        assert isinstance(outcome, str), f"{name} was let through"
        assert any(problem in outcome for problem in caught.problem.split("|"))
    else:
        assert isinstance(outcome, Path), outcome


def test_the_reference_names_the_faults_that_leave_whole_files(
    outcomes: dict[str, Path | str], engine: EngineEnvironment, tiny: Mapping[str, Path]
) -> None:
    stores = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Path)}
    results = compare_stores([StoreAndModel(store, tiny["llama"]) for store in stores.values()], engine.python)
    for name, result in zip(stores, results, strict=True):
        assert isinstance(result, Comparison), name
        cells = judge(EngineCase("llama", name), "0.5.9", result, PLAIN.states, PLAIN.n_tokens)
        wrong = {cell.state: cell.note for cell in cells if cell.verdict not in RIGHT}
        expected = EXPECTED.get(name, Caught()).states
        assert expected.keys() <= wrong.keys(), f"{name} was let through: {wrong}"
        for state, text in expected.items():
            assert text in wrong[state], name
        if name == "none":
            assert wrong == {}
