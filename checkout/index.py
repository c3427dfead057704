"""Ask a package index (Simple API, JSON or HTML) where a file lies."""

import json
import os
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from auxtap.core.errors import SourceError
from auxtap.core.files import BLOCK_BYTES

if TYPE_CHECKING:
    import httpx

DEFAULT_INDEX = "https://pypi.org/simple"
INDEX_VARIABLES = ("AUXTAP_INDEX_URL", "PIP_INDEX_URL", "UV_INDEX_URL")
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
MAX_PAGE_BYTES = 64 << 20


@dataclass(frozen=True)
class PackageIndex:
    """One package index; `variable` is the environment variable that chose it, None for the default."""

    url: str
    variable: str | None

    @property
    def shown(self) -> str:
        """The address without a password."""
        return redact(self.url)

    @property
    def hint(self) -> str:
        """What to try when this index does not deliver."""
        chosen = f"{self.variable} is set to {self.shown}" if self.variable else f"the index is {self.shown}"
        return f"{chosen}; set AUXTAP_INDEX_URL to an index that can be reached"


def redact(url: str) -> str:
    """Return `url` without user name and password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def chosen_index() -> PackageIndex:
    """Return the index that the environment names, PyPI by default."""
    for variable in INDEX_VARIABLES:
        if url := os.environ.get(variable, "").strip():
            return PackageIndex(url.rstrip("/"), variable)
    return PackageIndex(DEFAULT_INDEX, None)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.targets += [value for name, value in attrs if name == "href" and value]


def _targets_in_json(page: object) -> list[str]:
    entries = page.get("files") if isinstance(page, dict) else None
    if not isinstance(entries, list):
        return []
    return [entry["url"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("url"), str)]


def _targets(response: "httpx.Response", page: bytes) -> list[str]:
    if "json" in response.headers.get("content-type", ""):
        return _targets_in_json(json.loads(page))
    links = _Links()
    links.feed(page.decode(response.encoding or "utf-8", errors="replace"))
    return links.targets


def _read_page(response: "httpx.Response", index: PackageIndex) -> bytes:
    page = bytearray()
    for block in response.iter_bytes(BLOCK_BYTES):
        page += block
        if len(page) > MAX_PAGE_BYTES:
            raise SourceError(f"{index.shown} answered with more than {MAX_PAGE_BYTES:,} bytes", hint=index.hint)
    return bytes(page)


def find_file_url(client: "httpx.Client", index: PackageIndex, project: str, file_name: str) -> str:
    """Return the address of `file_name` among the files of `project`.

    Raises:
        SourceError: the index does not list it, or its page is too long or no page of a package index.
        httpx.HTTPError: the index cannot be reached or answers with an error.
    """
    with client.stream("GET", f"{index.url}/{project}/", headers={"Accept": _ACCEPT}) as response:
        response.raise_for_status()
        page = _read_page(response, index)
    try:
        targets = _targets(response, page)
    except (ValueError, RecursionError):
        raise SourceError(f"{index.shown} answered with JSON that cannot be read", hint=index.hint) from None
    for target in targets:
        url = urljoin(str(response.url), target)
        if unquote(urlsplit(url).path).rpartition("/")[2] == file_name:
            return url
    raise SourceError(f"{index.shown} does not list {file_name}", hint=index.hint)
