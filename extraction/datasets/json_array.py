"""Read the entries of a JSON array one after the other, as the ShareGPT dumps are published."""

import codecs
import json
import re
from collections.abc import Iterator
from typing import BinaryIO

_BLOCK_BYTES = 1 << 20
_GAP = re.compile(r"[ \t\r\n]*")
# What the decoder complains of at the end of a text that is merely not there yet.
_UNFINISHED = ("Unterminated string", "Invalid \\uXXXX", "Invalid \\escape")


class DamagedArrayError(Exception):
    """The array cannot be read further."""


class _Text:
    """The part of the text that is not read yet, and the file that it comes from."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self.text = ""
        self.ended = False

    def grow(self) -> None:
        """Read on; at least as much again as is here, so that a long entry is not begun over and over."""
        data = self._file.read(max(_BLOCK_BYTES, len(self.text)))
        self.ended = not data
        try:
            self.text += self._decoder.decode(data, final=self.ended)
        except UnicodeDecodeError:
            raise DamagedArrayError("not UTF-8") from None

    def skip_gap(self) -> str:
        """Drop blanks; return the character that follows, empty at the end."""
        while True:
            match = _GAP.match(self.text)
            self.text = self.text[match.end() :] if match else self.text
            if self.text or self.ended:
                return self.text[:1]
            self.grow()

    def take(self) -> object:
        """Return the next value."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text)
            except json.JSONDecodeError as error:
                unfinished = error.msg.startswith(_UNFINISHED) or error.pos >= len(self.text) - 8
                if self.ended or not unfinished:
                    raise DamagedArrayError("it is not whole" if unfinished else error.msg) from None
            except RecursionError:
                raise DamagedArrayError("nested too deep") from None
            except ValueError as error:
                raise DamagedArrayError(str(error)) from None
            else:
                if end < len(self.text) or self.ended:
                    self.text = self.text[end:]
                    return value
            self.grow()


_DECODER = json.JSONDecoder()


def array_entries(file: BinaryIO) -> Iterator[object]:
    """Give the entries of the array that `file` holds.

    Raises:
        DamagedArrayError: it ends early, or is no JSON.
    """
    text = _Text(file)
    text.skip_gap()
    text.text = text.text[1:]
    if text.skip_gap() == "]":
        return
    while True:
        yield text.take()
        separator = text.skip_gap()
        text.text = text.text[1:]
        if separator == "]":
            return
        if separator != ",":
            raise DamagedArrayError("the array ends early" if not separator else "no comma between two entries")
        if not text.skip_gap():
            raise DamagedArrayError("the array ends early")
