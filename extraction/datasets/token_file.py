"""Keep the tokens of a whole dataset out of memory: a nameless file that is gone when nobody holds it."""

import contextlib
import os
import sys
import tempfile
from array import array
from collections.abc import Iterator

from auxtap.core.errors import ExtractionError
from auxtap.extraction.datasets.pretokenized import unpack_ids

_TOKEN_BYTES = 4


@contextlib.contextmanager
def _kept() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExtractionError(
            f"the dataset's tokens cannot be kept: {error.strerror or error}",
            hint="they take 5 bytes each in the folder for temporary files; TMPDIR names another",
        ) from None


class TokenFile:
    """Token ids (4 bytes each) and masks (1 byte each), sample behind sample; read by any number of threads."""

    def __init__(self) -> None:
        """Make the file in the folder for temporary files (`TMPDIR`).

        Raises:
            ExtractionError: it cannot be made.
        """
        with _kept():
            self._file = tempfile.TemporaryFile(prefix="auxtap-tokens-")  # noqa: SIM115 - lives as long as this does
        self._end = 0

    def append(self, ids: bytes, loss_mask: bytes) -> int:
        """Keep little-endian int64 `ids` and a mask of as many bytes; return where.

        Raises:
            ExtractionError: there is no room.
        """
        begin = self._end
        data = array("i", unpack_ids(ids)).tobytes() + loss_mask
        with _kept():
            self._file.write(data)
        self._end += len(data)
        return begin

    def flush(self) -> None:
        """Have what was appended ready to be read.

        Raises:
            ExtractionError: there is no room.
        """
        with _kept():
            self._file.flush()

    def ids(self, begin: int, n_tokens: int) -> bytes:
        """Return the ids of the sample at `begin` as little-endian int64."""
        wide = array("q", self.token_ids(begin, n_tokens))
        if sys.byteorder == "big":
            wide.byteswap()
        return wide.tobytes()

    def token_ids(self, begin: int, n_tokens: int) -> list[int]:
        """Return the ids of the sample at `begin` as integers."""
        ids = array("i")
        ids.frombytes(self._read(begin, n_tokens * _TOKEN_BYTES))
        return ids.tolist()

    def loss_mask(self, begin: int, n_tokens: int) -> bytes:
        """Return the mask of the sample at `begin`."""
        return self._read(begin + n_tokens * _TOKEN_BYTES, n_tokens)

    def _read(self, begin: int, n_bytes: int) -> bytes:
        pieces = []
        while n_bytes:
            piece = os.pread(self._file.fileno(), n_bytes, begin)
            if not piece:
                raise OSError("the file of tokens is shorter than it was written")
            pieces.append(piece)
            begin += len(piece)
            n_bytes -= len(piece)
        return b"".join(pieces)
