"""Draw places of a release at random, from a list of names made with `tokenize` and not by the tracer."""

import io
import random
import tokenize
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from auxtap.core.source_tree import SRT_ROOT, SourceTree
from auxtap.tests.tracer.counting import ANYWHERE, NAMES, STAGE_NAMES


class Place(NamedTuple):
    """A NAME token of the pipeline that does something."""

    file: str
    line: int
    name: str


def draw_places(tree: SourceTree, seed: int, n_places: int) -> list[Place]:
    """Return `n_places` different places of a tree, in order of file and line; the same ones for the same seed."""
    everywhere = sorted(
        {
            place
            for path, data in tree.files.items()
            if path.is_relative_to(SRT_ROOT) and ANYWHERE.search(data)
            for place in _places(path, data)
        }
    )
    return sorted(random.Random(seed).sample(everywhere, n_places))


def _places(path: PurePosixPath, data: bytes) -> Iterator[Place]:
    """Yield the names of one file, those of import statements left out."""
    importing = False
    begins = True
    for token in tokenize.tokenize(io.BytesIO(data).readline):
        if begins and token.type == tokenize.NAME:
            importing = token.string in ("import", "from")
        if token.type == tokenize.NEWLINE:
            importing = False
        begins = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.NL, tokenize.COMMENT)
        begins = begins and not (importing and token.type in (tokenize.NL, tokenize.COMMENT))
        known = NAMES.fullmatch(token.string) is not None or token.string in STAGE_NAMES
        if token.type == tokenize.NAME and known and not importing:
            yield Place(str(path), token.start[0], token.string)
