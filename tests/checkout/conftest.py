"""A package index on loopback that serves whatever a test puts into it."""

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from auxtap.checkout import releases
from auxtap.checkout.releases import ReleaseWheel
from auxtap.core.cache import CacheLayout
from auxtap.tests.shaped import shaped_files

WHEEL = "sglang-0.5.9-py3-none-any.whl"


class Index:
    """What the index answers: `pages` and `files` by path; `asked` holds the paths in order."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: dict[str, tuple[int, str, bytes]] = {}
        self.asked: list[str] = []

    def list_json(self, *urls: str) -> None:
        page = {"files": [{"filename": url.rpartition("/")[2], "url": url} for url in urls]}
        self.answers["/simple/sglang/"] = (200, "application/vnd.pypi.simple.v1+json", json.dumps(page).encode())

    def list_html(self, *urls: str) -> None:
        links = "".join(f'<a href="{url}#sha256=00">{url}</a>' for url in urls)
        self.answers["/simple/sglang/"] = (200, "text/html", f"<html>{links}</html>".encode())

    def hold(self, path: str, data: bytes) -> None:
        self.answers[path] = (200, "application/octet-stream", data)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            held.asked.append(self.path)
            status, kind, data = held.answers.get(self.path, (404, "text/plain", b"no"))
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        held = Index(f"http://127.0.0.1:{server.server_address[1]}/simple")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("AUXTAP_INDEX_URL", held.url)
        yield held
        server.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path: Path) -> CacheLayout:
    return CacheLayout(tmp_path / "cache")


def make_wheel(members: Mapping[str, bytes] | None = None) -> bytes:
    """Return a wheel of the shaped tree, or one of the given members."""
    if members is None:
        members = {str(path.relative_to("python")): data for path, data in shaped_files().items()}
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return held.getvalue()


def lock(wheel: bytes, release: str = "0.5.9") -> ReleaseWheel:
    return ReleaseWheel(release, WHEEL, hashlib.sha256(wheel).hexdigest(), len(wheel))


@pytest.fixture
def release(index: Index, monkeypatch: pytest.MonkeyPatch) -> Index:
    """Return an index whose 0.5.9 is a wheel of the shaped tree, locked as such."""
    wheel = make_wheel()
    index.list_json(f"../../files/{WHEEL}")
    index.hold(f"/files/{WHEEL}", wheel)
    monkeypatch.setattr(releases, "locked_wheels", lambda: (lock(wheel),))
    return index
