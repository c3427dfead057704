"""The spool before and after a server."""

import fcntl
import json
import os
from pathlib import Path

import pytest

from auxtap.core.errors import ServerError
from auxtap.serving import spool as server_spool
from auxtap.serving.spool import is_armed, prepare_spool, remove_spool
from auxtap.tap import protocol


def describe(spool: Path, pp: int, pp_size: int, dp: int = 0, dp_size: int = 1) -> None:
    record = {"pp_rank": pp, "pp_size": pp_size, "dp_rank": dp, "dp_size": dp_size}
    (spool / protocol.descriptor_name("host", pp, dp)).write_text(json.dumps(record))


def test_the_taps_counters_are_known_by_name() -> None:
    assert Path(protocol.stats_name(protocol.descriptor_name("some-host", 0, 1))).match(server_spool.STATS)


def test_a_new_spool_is_private(tmp_path: Path) -> None:
    spool = tmp_path / "a" / "b"
    prepare_spool(spool)
    assert spool.stat().st_mode & 0o777 == 0o700
    prepare_spool(spool)


def test_a_dead_servers_descriptors_go_and_its_parts_stay(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    prepare_spool(spool)
    describe(spool, 0, 1)
    (spool / "stats-host-0-0.json").write_text("{}")
    (spool / "rank-host-0-0.lock").touch()
    part = spool / "aux1-00000000-0-1.pp0.dp0.ready"
    part.touch()
    prepare_spool(spool)
    assert {path.name for path in spool.iterdir()} == {part.name, "rank-host-0-0.lock"}


def test_a_live_servers_spool_is_refused(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    prepare_spool(spool)
    describe(spool, 0, 1)
    with (spool / "rank-host-0-0.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ServerError, match="in use by a running server"):
            prepare_spool(spool)
        assert remove_spool(spool) == 0
    assert is_armed(spool)


@pytest.mark.parametrize("kind", ["link", "file", "open", "below a file"])
def test_an_unsafe_spool_is_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    spool = tmp_path / "spool"
    if kind == "link":
        (tmp_path / "real").mkdir(mode=0o700)
        spool.symlink_to(tmp_path / "real")
    elif kind == "file":
        spool.touch()
    elif kind == "open":
        spool.mkdir()
        spool.chmod(0o755)
    else:
        spool.touch()
        spool = spool / "x"
    with pytest.raises(ServerError, match="spool"):
        prepare_spool(spool)
    if kind == "open":
        assert spool.stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_spool_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir(mode=0o500)
    with pytest.raises(ServerError, match="not writable"):
        prepare_spool(spool)


def test_armed_means_every_stage_and_group(tmp_path: Path) -> None:
    assert not is_armed(tmp_path)
    (tmp_path / "rank-host-9-9.json").write_text("half a rec")
    assert not is_armed(tmp_path)
    describe(tmp_path, 0, 2, 0, 2)
    describe(tmp_path, 1, 2, 0, 2)
    describe(tmp_path, 0, 2, 1, 2)
    assert not is_armed(tmp_path)
    describe(tmp_path, 1, 2, 1, 2)
    assert is_armed(tmp_path)


def test_a_spool_goes_unless_somebody_may_want_its_parts(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    prepare_spool(spool)
    describe(spool, 0, 1)
    part = spool / "aux1-00000000-0-1.pp0.dp0.ready"
    part.touch()
    assert remove_spool(spool) == 1
    assert part.exists()
    part.unlink()
    (spool / "rank-host-0-0.lock").touch()
    assert remove_spool(spool) == 0
    assert not spool.exists()
    assert remove_spool(spool) == 0
