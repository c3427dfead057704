"""The worked example of CONTRIBUTING.md is code that runs: on the class that it shows, and on what it must refuse."""

import importlib
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from auxtap.core.errors import PatchError
from auxtap.rewriters import places
from auxtap.rewriters.patch.registry import statement_rewriters
from auxtap.rewriters.places.gate import GateRewriter
from auxtap.rewriters.places.syntax import ParsedTree
from auxtap.tests.shaped import SCHEDULER, shaped_tree

TEXT = (Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text()
HEAD = b"import logging\n\n\n"


HEADER = """
from dataclasses import dataclass
from pathlib import PurePosixPath

from libcst import matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.rewriters.places.insertion import Insertion, guarded_call
from auxtap.rewriters.places.syntax import ParsedTree, parameters


"""


@pytest.fixture(scope="module")
def rewriter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Put the rewriter that the document shows into a folder that counts as one of `places/`."""
    blocks = re.findall(r"^ *```python\n(.*?)^ *```$", TEXT, re.MULTILINE | re.DOTALL)
    (block,) = (block for block in blocks if "class FinishRewriter" in block)
    folder = tmp_path_factory.mktemp("places")
    (folder / "finish.py").write_text(HEADER + textwrap.dedent(block))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "__path__", [*places.__path__, str(folder)])
        yield importlib.import_module(f"{places.__name__}.finish").STATEMENT()
    del sys.modules[f"{places.__name__}.finish"]


@pytest.fixture(scope="module")
def shown() -> bytes:
    """Return the class that the document shows."""
    found = re.search(r"^    class Scheduler:\n(?:        .*\n)+", TEXT, re.MULTILINE)
    assert found is not None
    return HEAD + textwrap.dedent(found[0]).encode()


def files(data: bytes) -> ParsedTree:
    return ParsedTree(shaped_tree({SCHEDULER: data}))


def test_the_shown_class(rewriter: Any, shown: bytes) -> None:
    proposed = rewriter.propose(files(shown))
    assert proposed.text == "        if _auxtap is not None:\n            _auxtap.finish(req)"
    assert shown.splitlines()[proposed.line - 1].strip() == b"self.pool.free(req)"
    assert GateRewriter(SCHEDULER).propose(files(shown)).line == 2


def test_it_is_found_by_its_name_where_it_is_needed(rewriter: Any, shown: bytes) -> None:
    kinds = [each.kind for each in statement_rewriters(("llama",), files(shown))]
    assert kinds == ["arm", "finish", "note", "tap", "stage"]
    assert "finish" not in [each.kind for each in statement_rewriters(("llama",), files(HEAD))]


def test_it_takes_names_from_the_file(rewriter: Any, shown: bytes) -> None:
    renamed = shown.replace(b"req)", b"done)")
    assert renamed != shown
    assert rewriter.propose(files(renamed)).text.endswith("_auxtap.finish(done)")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"self.pool.free(req)", b"self.pool.keep(req)", "found none"),
        (b"        self.count -= 1\n", b"        self.pool.free(req)\n", "found 2, at lines 6, 7"),
        (b"self.count -= 1", b"if req is None: return", "found a return before it"),
        (b"def finish", b"def end", "Scheduler.finish"),
    ],
)
def test_what_it_refuses(rewriter: Any, shown: bytes, old: bytes, new: bytes, said: str) -> None:
    changed = shown.replace(old, new)
    assert changed != shown
    with pytest.raises(PatchError) as caught:
        rewriter.propose(files(changed))
    assert said in caught.value.message
