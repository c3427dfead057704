"""Engine environments, with a lock of one tiny package in the real one's place."""

import subprocess
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from auxtap.core.cache import CacheLayout
from auxtap.core.errors import ServerError
from auxtap.core.files import held_lock
from auxtap.serving import engine_lock
from auxtap.serving.engine_env import (
    MARKER,
    EngineEnvironment,
    engine_folder,
    find_engine,
    install_lock,
    python_version,
)
from auxtap.serving.engine_lock import EngineLock, lock_of_release, read_lock
from auxtap.serving.pip import failed_requirement

pytestmark = pytest.mark.slow


def make_wheel(folder: Path, version: str) -> None:
    """Write a wheel of one module, as pip wants it."""
    info = f"auxtap_tiny-{version}.dist-info"
    with zipfile.ZipFile(folder / f"auxtap_tiny-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr("auxtap_tiny.py", f"VERSION = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: auxtap-tiny\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let pip see a folder of two wheels and nothing else, by its own configuration."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for version in ("1.0", "2.0"):
        make_wheel(wheels, version)
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    # What would break another Python's imports must not reach pip.
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("PYTHONHOME", "/nowhere")
    yield wheels


def write_lock(tmp_path: Path, text: str) -> EngineLock:
    path = tmp_path / "tiny.txt"
    path.write_text(text)
    return read_lock(path)


def imported_version(engine: EngineEnvironment) -> str:
    program = "import auxtap_tiny; print(auxtap_tiny.VERSION)"
    return subprocess.run(
        [engine.python, "-I", "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_an_environment_is_made_once_repaired_and_renewed(tmp_path: Path, offline: Path) -> None:
    cache = CacheLayout(tmp_path / "cache")
    lock = write_lock(tmp_path, "# one package\nauxtap-tiny==1.0\n")
    steps: list[str] = []
    made = install_lock("0.0.1", lock, cache, progress=steps.append)
    assert made.changed
    assert imported_version(made) == "1.0"
    assert any("auxtap-tiny" in step or "auxtap_tiny" in step for step in steps)
    assert not list((made.folder / "lib").rglob("auxtap"))

    found = install_lock("0.0.1", lock, cache, progress=pytest.fail)
    assert not found.changed
    assert found.python == made.python

    # Interrupted before the end: there is no marker yet, and a package is half there.
    (made.folder / MARKER).unlink()
    (next((made.folder / "lib").rglob("auxtap_tiny.py"))).unlink()
    (next((made.folder / "lib").rglob("auxtap_tiny-1.0.dist-info")) / "METADATA").unlink()
    assert install_lock("0.0.1", lock, cache).changed
    assert imported_version(made) == "1.0"

    # A new lock under the same name renews the packages in place.
    assert install_lock("0.0.1", write_lock(tmp_path, "auxtap-tiny==2.0\n"), cache).changed
    assert imported_version(made) == "2.0"

    # An environment whose Python is gone is made anew.
    made.python.unlink()
    assert install_lock("0.0.1", write_lock(tmp_path, "auxtap-tiny==2.0\n"), cache).changed
    assert imported_version(made) == "2.0"


def test_the_requirement_at_fault_is_named_and_no_marker_is_left(tmp_path: Path, offline: Path) -> None:
    cache = CacheLayout(tmp_path / "cache")
    lock = write_lock(tmp_path, "auxtap-tiny==1.0\nauxtap-missing==3.1\n")
    with pytest.raises(ServerError, match=r"pip cannot install auxtap-missing==3\.1") as caught:
        install_lock("0.0.1", lock, cache)
    assert "auxtap-setup.log" in str(caught.value.hint)
    folder = engine_folder(cache, lock, python_version(Path("python3")))
    assert not (folder / MARKER).exists()


def test_two_at_once_do_it_once(tmp_path: Path, offline: Path) -> None:
    cache = CacheLayout(tmp_path / "cache")
    lock = write_lock(tmp_path, "")
    waiting = threading.Event()
    results: list[EngineEnvironment] = []

    def second() -> None:
        results.append(install_lock("0.0.1", lock, cache, progress=lambda step: waiting.set()))

    folder = engine_folder(cache, lock, python_version(Path("python3")))
    thread = threading.Thread(target=second)
    with held_lock(folder.with_name(f".{folder.name}.lock")):
        thread.start()
        assert waiting.wait(30)
        assert not folder.exists()
    thread.join(60)
    assert results[0].changed
    assert not install_lock("0.0.1", lock, cache).changed


def test_a_python_that_cannot_be_run(tmp_path: Path) -> None:
    lock = write_lock(tmp_path, "")
    with pytest.raises(ServerError, match="cannot run"):
        install_lock("0.0.1", lock, CacheLayout(tmp_path / "cache"), python=tmp_path / "none")


def test_a_release_without_a_lock() -> None:
    with pytest.raises(ServerError, match=r"no engine environment is known for SGLang 0\.4\.6"):
        lock_of_release("0.4.6")


def test_finding_makes_nothing(tmp_path: Path) -> None:
    cache = CacheLayout(tmp_path / "cache")
    assert find_engine("0.5.9", cache) is None
    assert not cache.root.exists()


def test_every_lock_pins_every_package_and_has_what_the_tap_wants() -> None:
    for release in engine_lock.LOCK_OF_RELEASE:
        lock = lock_of_release(release)
        names = [requirement.partition("==")[0] for requirement in lock.requirements]
        assert len(names) == len(set(names))
        assert list(lock.requirements) == sorted(lock.requirements)
        assert {"torch", "transformers", "safetensors", "xxhash"} <= set(names)
        assert not {"sglang", "torchvision"} & set(names)
        assert len(lock.first) == 1


@pytest.mark.parametrize("text", ["torch\n", "torch>=2\n", "-r other.txt\n"])
def test_a_lock_that_pins_nothing_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ServerError, match="is not pinned"):
        write_lock(tmp_path, text)


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "ERROR: Could not find a version that satisfies the requirement a==9 (from versions: 1)\n"
            "ERROR: No matching distribution found for a==9",
            "a==9: no index offers it for this Python and machine",
        ),
        (
            "  error: x\n  ERROR: Failed building wheel for uvloop\nFailed to build uvloop",
            "uvloop: it could not be built",
        ),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", None),
        ("", "anything: it says nothing"),
    ],
)
def test_what_pip_failed_on(output: str, reason: str | None) -> None:
    found = failed_requirement(output.splitlines())
    assert found == reason if reason is not None else "No space left" in found
