"""A real server as a person starts one, and what it must give."""

from pathlib import Path

from auxtap.serving.profile import LaunchSpec
from auxtap.serving.server import ServerProcess
from auxtap.verification.engine.engine_run import extract_all, write_dataset
from auxtap.verification.engine.engine_settings import SETTINGS
from auxtap.verification.engine.reference import Comparison, StoreAndModel, compare_stores


def assert_serves_right_states(spec: LaunchSpec, folder: Path, reference_python: Path) -> None:
    """Serve `spec`, extract a few prompts into `folder/store`, and hold every state against transformers."""
    dataset = write_dataset(folder / "data.jsonl", (1, 5, 40))
    with ServerProcess(spec) as server:
        server.wait_ready(timeout_s=300)
        extract_all(spec, dataset, folder / "store", SETTINGS["default"])
    (comparison,) = compare_stores([StoreAndModel(folder / "store", Path(spec.model_path))], reference_python)
    assert isinstance(comparison, Comparison)
    assert [state.rows for state in comparison.states] == [46] * (len(spec.layers) + 1)
    assert max(state.max_rel for state in comparison.states) < 5e-6
