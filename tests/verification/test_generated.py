"""The committed patches are what the tool writes: byte for byte, release by release."""

import shutil
from pathlib import Path

import pytest

from auxtap.checkout.publication import patch_files, read_published, remove_unused_tables
from auxtap.checkout.source import open_source
from auxtap.core.cache import CacheLayout
from auxtap.core.files import sha256_bytes
from auxtap.core.patch_parts import INSERTED_NAME, MANIFEST_NAME, TABLES_NAME
from auxtap.rewriters.patch.plan import read_tap_files
from auxtap.rewriters.patch.registry import DEFAULT_MODELS
from auxtap.verification.engine.engine_report import TOLERANCE
from auxtap.verification.proof.proof_level import read_proofs
from auxtap.verification.proof.proved import prove_patch
from auxtap.verification.releases.compatibility import PAGE_NAME
from auxtap.verification.releases.sweep import chosen_releases

pytestmark = pytest.mark.slow

GENERATED = Path(__file__).resolve().parent.parent.parent / "generated"
FEW_RELEASES = ("0.4.5", "0.5.23")
LAYERS = (3, 31, 59)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "release" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--all-releases")
        metafunc.parametrize("release", chosen_releases(None) if everything else FEW_RELEASES)


@pytest.mark.network
def test_the_committed_patch_is_what_the_tool_writes(release: str, shared_cache: CacheLayout) -> None:
    proved = prove_patch(open_source(f"pypi:{release}", shared_cache), DEFAULT_MODELS, LAYERS)
    committed = patch_files(GENERATED / f"sglang-{release}")
    assert proved.proof.holds
    assert proved.patch_set.inserted == committed.patch.read_bytes(), "run make regen"
    assert proved.manifest == committed.manifest.read_bytes(), "run make regen"


def test_every_release_has_a_patch_and_a_line_on_the_page() -> None:
    releases = chosen_releases(None)
    page = (GENERATED / PAGE_NAME).read_text()
    for release in releases:
        folder = GENERATED / f"sglang-{release}"
        assert sorted(path.name for path in folder.iterdir()) == [INSERTED_NAME, MANIFEST_NAME]
        assert f"| {release} |" in page
    assert {folder.name for folder in GENERATED.glob("sglang-*")} == {f"sglang-{release}" for release in releases}


@pytest.mark.parametrize("each", chosen_releases(None))
def test_every_committed_patch_is_whole_with_the_tap_of_today(each: str) -> None:
    """Cheap enough for every release: put together with the tap's files beside us it is the manifest's."""
    written = read_published(patch_files(GENERATED / f"sglang-{each}"))
    assert written.manifest.patch_sha256 == sha256_bytes(written.patch), "run make regen"
    ours = {file.path for file in read_tap_files()}
    assert set(written.manifest.new_files) == ours, "run make regen"


def test_every_table_is_some_release_s(tmp_path: Path) -> None:
    names = sorted(path.name for path in (GENERATED / TABLES_NAME).iterdir())
    shutil.copytree(GENERATED, tmp_path / "generated")
    remove_unused_tables(tmp_path / "generated")
    assert sorted(path.name for path in (tmp_path / "generated" / TABLES_NAME).iterdir()) == names


def test_every_kept_numeric_proof_names_its_servers() -> None:
    for release, proof in read_proofs(GENERATED).items():
        assert release in chosen_releases(None) and proof.cases
        assert all(case.rows > 0 and 0 <= case.max_rel <= TOLERANCE for case in proof.cases)
