"""What the extractor believes of a spool: nothing that others could have planted, no writers that do not fit."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auxtap.core.errors import ExtractionError
from auxtap.extraction.run.driver import ExtractionJob, run_extraction
from auxtap.extraction.spool.directory import ForeignFileError, SpoolDirectory
from auxtap.extraction.spool.topology import Topology, read_topology
from auxtap.tap.protocol import part_layout

Maker = Callable[..., ExtractionJob]


def test_a_spool_open_to_others_is_refused(make_job: Maker, spool: Path) -> None:
    spool.chmod(0o750)
    with pytest.raises(ExtractionError, match="has mode 0750; it must be 0700"):
        run_extraction(make_job(1))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a folder away")
def test_a_spool_of_another_user_is_refused(make_job: Maker, spool: Path) -> None:
    os.chown(spool, 12345, 12345)
    with pytest.raises(ExtractionError, match="belongs to uid 12345, not to 0"):
        run_extraction(make_job(1))


def test_a_spool_that_is_a_link_or_missing_is_refused(spool: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(spool)
    for path in (tmp_path / "link", tmp_path / "nowhere", tmp_path / "file"):
        (tmp_path / "file").write_text("")
        with pytest.raises(ExtractionError, match="cannot be opened"):
            SpoolDirectory(path)


def test_links_pipes_and_strangers_are_not_opened(spool: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (spool / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(spool / "pipe")
    (spool / "folder").mkdir()
    with SpoolDirectory(spool) as directory:
        for name in ("link", "pipe", "folder"):
            with pytest.raises(ForeignFileError):
                directory.open_file(name)
            assert directory.holds(name)
        with pytest.raises(FileNotFoundError):
            directory.open_file("nothing")
        if os.geteuid() == 0:
            (spool / "theirs").write_text("x")
            os.chown(spool / "theirs", 12345, 12345)
            with pytest.raises(ForeignFileError):
                directory.open_file("theirs")
        (spool / "large").write_bytes(b"x" * ((1 << 20) + 1))
        with pytest.raises(ForeignFileError, match="larger than any record"):
            directory.read_record("large")


def test_a_closed_spool_touches_nothing(spool: Path) -> None:
    directory = SpoolDirectory(spool)
    with directory:
        assert directory.is_in_place()
    (spool / "x").write_text("")
    with pytest.raises(OSError, match="Bad file descriptor"):
        directory.remove("x")


def test_no_writer_names_the_next_step(spool: Path) -> None:
    with SpoolDirectory(spool) as directory, pytest.raises(ExtractionError, match="no writer has announced") as raised:
        read_topology(directory)
    assert "auxtap serve" in (raised.value.hint or "")


def test_a_missing_stage_is_named(tap: Any, spool: Path) -> None:
    tap.stages = ((3,), (5,))
    tap.announce()
    (spool / "rank-testhost-1-0.json").unlink()
    with SpoolDirectory(spool) as directory, pytest.raises(ExtractionError, match="stage 1 of group 0 has not"):
        read_topology(directory)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "BF16"}, "disagree on dtype"),
        ({"release": "0.5.10"}, "disagree on release"),
        ({"layers": (3, 5)}, "hold layers"),
        ({"has_final": False}, "hold layers"),
        ({"pp_rank": 0}, "two writers say they are stage 0"),
        ({"pp_rank": 7}, "makes no sense"),
    ],
)
def test_writers_that_do_not_fit_together(tap: Any, spool: Path, change: dict[str, Any], message: str) -> None:
    tap.stages = ((3,), (5,))
    tap.announce()
    changed = replace(tap.descriptor(1), **change)
    (spool / "rank-testhost-1-0.json").write_text(json.dumps(changed.to_json()))
    with SpoolDirectory(spool) as directory, pytest.raises(ExtractionError, match=message):
        read_topology(directory)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"protocol": 99}', "[" * 100_000])
def test_an_unreadable_descriptor_is_named(spool: Path, text: str) -> None:
    (spool / "rank-h-0-0.json").write_text(text)
    with SpoolDirectory(spool) as directory, pytest.raises(ExtractionError, match=r"rank-h-0-0.json is unusable"):
        read_topology(directory)


def test_a_descriptor_that_is_a_link_is_refused(tap: Any, spool: Path, tmp_path: Path) -> None:
    (tmp_path / "planted").write_text(json.dumps(tap.descriptor(0).to_json()))
    (spool / "rank-testhost-0-0.json").symlink_to(tmp_path / "planted")
    with SpoolDirectory(spool) as directory, pytest.raises(ExtractionError, match="is no plain file"):
        read_topology(directory)


def test_a_samples_size_in_the_spool_is_known_beforehand(tap: Any) -> None:
    tap.stages = ((3, 5), (6,))
    topology = Topology((tap.descriptor(0), tap.descriptor(1)))
    data = [part_layout(n_tokens=1000, layers=layers, has_final=final, hidden_size=8, dtype="F32").data_bytes
            for layers, final in (((3, 5), False), ((6,), True))]  # fmt: skip
    assert sum(data) < topology.spool_bytes(1000) <= sum(data) + 2 * 2 * 4096
