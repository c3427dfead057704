"""Try a patch on the whole pinned tree, in an index of its own and without a checkout."""

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from auxtap.checkout.repository import git_line, list_tree, read_blobs, run_git


class PinnedTree:
    """A temporary repository that borrows the source's objects and whose index holds the pinned commit.

    The source's repository is read and never written: what the patch makes goes into the temporary one.
    """

    def __init__(self, directory: Path, commit: str) -> None:
        self._directory = directory
        self._commit = commit

    def apply(self, patch: bytes, *, check: bool = False, reverse: bool = False) -> None:
        """Apply a zero-context patch to the index, or with `check` only try to.

        Raises:
            GitError: git refuses it.
        """
        options = ["--cached", "--unidiff-zero", "--whitespace=nowarn", "--no-ignore-whitespace"]
        options += ["--check"] if check else []
        options += ["--reverse"] if reverse else []
        run_git(self._directory, "apply", *options, "-", stdin=patch)

    def changed(self) -> tuple[PurePosixPath, ...]:
        """Return every path of the whole tree in which the index differs from the pinned commit."""
        listing = run_git(self._directory, "diff-index", "--cached", "--name-only", "--no-renames", "-z", self._commit)
        return tuple(PurePosixPath(name.decode(errors="surrogateescape")) for name in listing.split(b"\0") if name)

    def read(self, paths: Iterable[PurePosixPath]) -> dict[PurePosixPath, bytes]:
        """Return the content that the index holds of `paths`; absent files are left out."""
        tree = git_line(self._directory, "write-tree", "--missing-ok")
        wanted = set(paths)
        entries = [
            entry
            for folder in {path.parent for path in wanted}
            for entry in list_tree(self._directory, tree, folder)
            if entry.path in wanted and entry.path.parent == folder
        ]
        contents = read_blobs(self._directory, [entry.blob for entry in entries])
        return dict(zip((entry.path for entry in entries), contents, strict=True))


@contextlib.contextmanager
def pinned_tree(repository: Path, commit: str) -> Iterator[PinnedTree]:
    """Open a scratch copy of a commit's tree for the length of the block.

    Raises:
        GitError: the repository cannot be read.
    """
    objects = Path(git_line(repository, "rev-parse", "--path-format=absolute", "--git-path", "objects"))
    style = git_line(repository, "rev-parse", "--show-object-format")
    with tempfile.TemporaryDirectory(prefix="auxtap-tree-") as folder:
        directory = Path(folder)
        run_git(directory, "init", "--quiet", "--bare", "--template=", f"--object-format={style}", ".")
        alternates = directory / "objects/info/alternates"
        alternates.parent.mkdir(parents=True, exist_ok=True)
        alternates.write_text(f"{objects}\n")
        run_git(directory, "read-tree", commit)
        yield PinnedTree(directory, commit)
