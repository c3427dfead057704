"""The spool directory and one part."""

import os
import random

import pytest
from safetensors.numpy import load_file

from auxtap.tap import protocol
from auxtap.tap.config import RefusedError
from auxtap.tap.protocol import PartName, RequestId
from auxtap.tap.spool import Part, SpoolDirectory

NAME = PartName(RequestId("00000000", 0, 0), 0, 0, protocol.WRITING)
LAYOUT = protocol.part_layout(n_tokens=4, layers=[2], has_final=True, hidden_size=2, dtype="F32")


@pytest.fixture
def spool(tmp_path):
    folder = tmp_path / "spool"
    folder.mkdir(mode=0o700)
    return SpoolDirectory(folder)


@pytest.fixture
def folder(spool, tmp_path):
    return tmp_path / "spool"


def test_directories_open_to_others_are_refused(tmp_path):
    (tmp_path / "spool").mkdir(mode=0o755)
    with pytest.raises(RefusedError, match="0700"):
        SpoolDirectory(tmp_path / "spool")


def test_missing_directories_and_links_are_refused(tmp_path, folder):
    with pytest.raises(RefusedError, match="No such file"):
        SpoolDirectory(tmp_path / "nowhere")
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(RefusedError):
        SpoolDirectory(tmp_path / "link")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_directories_of_others_are_refused(tmp_path):
    (tmp_path / "spool").mkdir(mode=0o700)
    os.chown(tmp_path / "spool", 12345, 12345)
    with pytest.raises(RefusedError, match="belongs to uid 12345"):
        SpoolDirectory(tmp_path / "spool")


def test_a_second_writer_is_refused(spool, folder):
    handle = spool.lock("x.lock")
    with pytest.raises(RefusedError, match="another server"):
        SpoolDirectory(folder).lock("x.lock")
    os.close(handle)
    os.close(SpoolDirectory(folder).lock("x.lock"))


def test_planted_files_are_not_followed(spool, folder, tmp_path):
    target = tmp_path / "target"
    (folder / str(NAME)).symlink_to(target)
    with pytest.raises(FileExistsError):
        Part(spool, NAME, LAYOUT, "n")
    assert not target.exists()


def _rows(count: int, first: float) -> bytes:
    import numpy as np

    return (np.arange(count * 2, dtype=np.float32) + first).tobytes()


def test_rows_in_any_order_make_a_part(spool, folder):
    part = Part(spool, NAME, LAYOUT, "n")
    assert (folder / str(NAME)).stat().st_mode & 0o777 == 0o600
    part.write_rows("input_ids", 0, b"".join(i.to_bytes(8, "little") for i in (5, 6, 7, 8)))
    for name in ("hidden.2", "final"):
        part.write_rows(name, 2, _rows(2, 4))
        part.write_rows(name, 0, _rows(2, 0))
    assert not part.cover(2, 2)
    assert part.cover(0, 2)
    part.seal()
    ready = folder / str(NAME).replace(".part", ".ready")
    assert sorted(os.listdir(folder)) == [ready.name]
    tensors = load_file(ready)
    assert tensors["input_ids"].tolist() == [5, 6, 7, 8]
    assert tensors["final"].ravel().tolist() == list(range(8))
    header = protocol.decode_header(ready.read_bytes())
    algorithm, value = protocol.split_digest(header.metadata["digest"])
    digest = protocol.new_digest(algorithm)
    digest.update(ready.read_bytes()[header.n_bytes :])
    assert digest.hexdigest() == value
    assert header.metadata["rid"] == str(NAME.rid)
    assert header.metadata["nonce"] == "n"


def test_the_same_rows_twice_count_once(spool):
    part = Part(spool, NAME, LAYOUT, "n")
    assert not part.cover(0, 3)
    assert not part.cover(0, 3)
    assert not part.cover(1, 2)
    assert part.cover(3, 1)
    part.abandon()


def test_a_gap_is_no_part(spool):
    part = Part(spool, NAME, LAYOUT, "n")
    assert not part.cover(0, 1)
    assert not part.cover(2, 2)
    part.abandon()


def test_an_abandoned_part_leaves_nothing(spool, folder):
    Part(spool, NAME, LAYOUT, "n").abandon()
    assert os.listdir(folder) == []


@pytest.mark.parametrize("seed", range(12))
def test_the_digest_is_that_of_the_file_in_whatever_order_rows_come(spool, folder, seed):
    dice = random.Random(seed)
    layout = protocol.part_layout(n_tokens=9, layers=[2, 3], has_final=True, hidden_size=3, dtype="F32")
    part = Part(spool, NAME, layout, "n")
    pieces = [(slot, begin, min(begin + 3, 9)) for slot in layout.slots for begin in range(0, 9, 3)]
    if seed % 3:
        pieces += dice.sample(pieces, 4)  # rows of a forward that was run again, perhaps with other last bits
    if seed % 2:
        dice.shuffle(pieces)
    for slot, begin, end in pieces:
        part.write_rows(slot.name, begin, dice.randbytes((end - begin) * slot.row_bytes))
    part.cover(0, 9)
    part.seal()
    data = (folder / str(PartName(NAME.rid, 0, 0, protocol.READY))).read_bytes()
    header = protocol.decode_header(data)
    algorithm, expected = protocol.split_digest(header.metadata["digest"])
    digest = protocol.new_digest(algorithm)
    digest.update(data[header.n_bytes :])
    assert digest.hexdigest() == expected
