"""Released wheels: from an index on loopback, and only the locked bytes."""

import threading
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from auxtap.checkout import index as package_index
from auxtap.checkout.index import chosen_index, redact
from auxtap.checkout.releases import find_release, locked_wheels
from auxtap.checkout.wheel import fetch_wheel, read_package
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import ExitCode, SourceError
from auxtap.tests.checkout.conftest import WHEEL, Index, lock, make_wheel


def silent(_: str) -> None:
    return None


def left(cache: CacheLayout) -> list[str]:
    return sorted(path.name for path in cache.wheels.iterdir() if not path.name.endswith(".lock"))


def refused(cache: CacheLayout, locked: Any) -> str:
    with pytest.raises(SourceError) as caught:
        fetch_wheel(locked, cache, silent)
    assert caught.value.exit_code == ExitCode.SOURCE and caught.value.hint
    assert left(cache) == []
    return caught.value.message


@pytest.mark.parametrize("form", ["json", "html"])
@pytest.mark.parametrize("relative", [True, False])
def test_downloads_the_locked_file_once(index: Index, cache: CacheLayout, form: str, relative: bool) -> None:
    wheel = make_wheel()
    url = f"../../files/{WHEEL}" if relative else index.url.replace("/simple", f"/files/{WHEEL}")
    getattr(index, f"list_{form}")("../../files/sglang-0.5.8-py3-none-any.whl", url)
    index.hold(f"/files/{WHEEL}", wheel)
    said: list[str] = []
    path = fetch_wheel(lock(wheel), cache, said.append)
    assert path.read_bytes() == wheel and left(cache) == [WHEEL]
    assert len(said) == 1 and WHEEL in said[0]
    assert fetch_wheel(lock(wheel), cache, said.append) == path
    assert index.asked == ["/simple/sglang/", f"/files/{WHEEL}"] and len(said) == 1


def test_refuses_other_bytes_of_the_same_length(index: Index, cache: CacheLayout) -> None:
    wheel = make_wheel()
    index.list_json(f"../../files/{WHEEL}")
    index.hold(f"/files/{WHEEL}", wheel[:-1] + b"X")
    assert "is not the released file: sha256" in refused(cache, lock(wheel))


@pytest.mark.parametrize("surplus", [b"", b"more" * 1_000_000])
def test_refuses_a_file_that_is_shorter_or_longer(index: Index, cache: CacheLayout, surplus: bytes) -> None:
    wheel = make_wheel()
    index.list_json(f"../../files/{WHEEL}")
    index.hold(f"/files/{WHEEL}", wheel + surplus if surplus else wheel[:-9])
    assert "bytes" in refused(cache, lock(wheel))


def test_replaces_a_damaged_cached_file(index: Index, cache: CacheLayout) -> None:
    wheel = make_wheel()
    index.list_json(f"../../files/{WHEEL}")
    index.hold(f"/files/{WHEEL}", wheel)
    cache.wheels.mkdir(parents=True)
    (cache.wheels / WHEEL).write_bytes(wheel[:100])
    assert fetch_wheel(lock(wheel), cache, silent).read_bytes() == wheel


def test_an_index_without_it(index: Index, cache: CacheLayout) -> None:
    index.list_json("../../files/other.whl")
    assert f"does not list {WHEEL}" in refused(cache, lock(make_wheel()))


def test_an_index_that_is_none(index: Index, cache: CacheLayout) -> None:
    assert "answered 404" in refused(cache, lock(make_wheel()))
    index.answers["/simple/sglang/"] = (200, "application/json", b"{")
    assert "JSON that cannot be read" in refused(cache, lock(make_wheel()))
    index.answers["/simple/sglang/"] = (200, "application/json", b'{"files": [3]}')
    assert "does not list" in refused(cache, lock(make_wheel()))


def test_a_page_of_an_index_is_read_up_to_a_bound(
    index: Index, cache: CacheLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.list_json("../../files/other.whl")
    monkeypatch.setattr(package_index, "MAX_PAGE_BYTES", 20)
    assert "answered with more than 20 bytes" in refused(cache, lock(make_wheel()))


def test_an_index_that_cannot_be_reached(cache: CacheLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUXTAP_INDEX_URL", "http://127.0.0.1:1/simple")
    assert "cannot download" in refused(cache, lock(make_wheel()))
    monkeypatch.setenv("AUXTAP_INDEX_URL", "file:///nowhere")
    assert "cannot download" in refused(cache, lock(make_wheel()))


def test_two_at_once_download_once(index: Index, cache: CacheLayout) -> None:
    wheel = make_wheel()
    index.list_json(f"../../files/{WHEEL}")
    index.hold(f"/files/{WHEEL}", wheel)
    threads = [threading.Thread(target=fetch_wheel, args=(lock(wheel), cache, silent)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert index.asked.count(f"/files/{WHEEL}") == 1 and left(cache) == [WHEEL]


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match="cannot write") as caught:
        fetch_wheel(lock(make_wheel()), CacheLayout(tmp_path / "file"), silent)
    assert "AUXTAP_CACHE" in (caught.value.hint or "")


def test_chooses_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AUXTAP_INDEX_URL", "PIP_INDEX_URL", "UV_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    assert chosen_index().url == "https://pypi.org/simple"
    monkeypatch.setenv("UV_INDEX_URL", "https://uv.example/simple/")
    assert chosen_index().url == "https://uv.example/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:secret@pip.example/simple")
    assert "secret" not in chosen_index().hint and redact(chosen_index().url) == "https://pip.example/simple"
    monkeypatch.setenv("AUXTAP_INDEX_URL", "https://mine.example/simple")
    assert chosen_index().variable == "AUXTAP_INDEX_URL"


def test_the_lock_table() -> None:
    wheels = locked_wheels()
    assert len(wheels) == 66 and (wheels[0].release, wheels[-1].release) == ("0.4.5", "0.5.23")
    assert all(len(wheel.sha256) == 64 and wheel.n_bytes > 0 for wheel in wheels)


@pytest.mark.parametrize("release", ["0.5.99", "", "../0.5.9", "0.5.9\n"])
def test_an_unknown_release(release: str) -> None:
    with pytest.raises(SourceError) as caught:
        find_release(release)
    assert caught.value.exit_code == ExitCode.SOURCE and "did you mean" in (caught.value.hint or "")


def read(tmp_path: Path, members: dict[str, bytes]) -> dict[PurePosixPath, bytes]:
    path = tmp_path / WHEEL
    path.write_bytes(make_wheel(members))
    return read_package(path)


MARK = {"sglang/srt/server_args.py": b""}


def test_reads_the_package_without_what_is_compiled(tmp_path: Path) -> None:
    more = {
        "sglang/srt/a.json": b"{}",
        "sglang/srt/b.so": b"",
        "sglang/c.cpython-311-x86_64-linux-gnu.so": b"",
        "sglang/d.so.1": b"",
        "sglang/__pycache__/e.cpython-311.pyc": b"",
        "sglang-0.5.9.dist-info/RECORD": b"",
        "other/f.py": b"",
    }
    assert [str(path) for path in read(tmp_path, MARK | more)] == ["srt/a.json", "srt/server_args.py"]


@pytest.mark.parametrize(
    "name", ["sglang/../../evil.py", "/sglang/evil.py", "sglang\\..\\evil.py", "../sglang/evil.py", "sglang/e\nvil.py"]
)
def test_refuses_a_member_that_leaves_its_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceError, match="leaves its folder"):
        read(tmp_path, {**MARK, name: b""})


def test_refuses_sizes_that_no_package_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("auxtap.checkout.wheel.MAX_MEMBER_BYTES", 1000)
    with pytest.raises(SourceError, match="more bytes"):
        read(tmp_path, {**MARK, "sglang/bomb.py": b"0" * 1001})
    monkeypatch.setattr("auxtap.checkout.wheel.MAX_MEMBERS", 1)
    with pytest.raises(SourceError, match="members"):
        read(tmp_path, {**MARK, "sglang/a.py": b""})


def test_refuses_what_is_no_wheel_of_sglang(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no SGLang server"):
        read(tmp_path, {"sglang/a.py": b""})
    (tmp_path / WHEEL).write_bytes(b"PK no zip")
    with pytest.raises(SourceError, match="cannot be unpacked"):
        read_package(tmp_path / WHEEL)
