"""An SGLang tree in a notebook: trace it, plan a capture, write and prove the patch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from auxtap.checkout.publication import publish_patch
from auxtap.checkout.source import Source, open_source
from auxtap.core.cache import CacheLayout
from auxtap.core.errors import CheckFailedError
from auxtap.rewriters.patch.plan import CapturePlan, plan_capture
from auxtap.rewriters.patch.registry import model_files
from auxtap.rewriters.places.syntax import ParsedTree
from auxtap.tracer.flow.selection import DEFAULT_MODELS
from auxtap.tracer.report.trace_report import TraceReport
from auxtap.tracer.tracing import trace_tree
from auxtap.verification.proof.proved import ProvedPatch, prove_patch
from auxtap.verification.static.verdicts import Verdict

PATCH_LAYERS = (3, 31, 59)
PATCH_MODELS = ("deepseek", "llama")


@dataclass(frozen=True)
class OpenTree:
    """An SGLang tree that was opened and read; `auxtap.open_source` makes one.

    `release` is the version the tree says it is, `commit` the commit that was read, `digest` a sha256 over its `.py`
    files.
    """

    source: Source = field(repr=False)
    origin: str
    release: str
    commit: str
    digest: str

    def __len__(self) -> int:
        """Return the number of `.py` files."""
        return len(self.source.tree.files)

    def trace(
        self, models: Sequence[str] = DEFAULT_MODELS, *, everything: bool = False, num_layers: int | None = None
    ) -> TraceReport:
        """Trace where states are captured, how they travel and where they are lost; `everything` traces all files.

        Raises:
            UsageError: there is no such model.
            SourceError: the tree has no models.
        """
        return trace_tree(self.source.tree, models, everything=everything, num_layers=num_layers)

    def plan(self, layers: Sequence[int] = PATCH_LAYERS, models: Sequence[str] = PATCH_MODELS) -> CapturePlan:
        """Find every place that a patch would insert into; `layers` are capture indices.

        Raises:
            UsageError: there is no such model.
            PatchError: an anchor is missing or stands twice, or the tree is patched already.
        """
        model_files(tuple(models), ParsedTree(self.source.tree))
        return plan_capture(self.source.tree, tuple(models), tuple(layers))

    def patch(self, layers: Sequence[int] = PATCH_LAYERS, models: Sequence[str] = PATCH_MODELS) -> "WrittenPatch":
        """Write the capture patch and prove it statically; nothing is written to disk.

        Raises:
            UsageError: there is no such model.
            PatchError: an anchor is missing or stands twice, or the tree is patched already.
            CheckFailedError: a check of the patch answers no.
        """
        model_files(tuple(models), ParsedTree(self.source.tree))
        proved = prove_patch(self.source, tuple(models), tuple(layers))
        if not proved.proof.holds:
            found = "; ".join(f"{verdict.check}: {verdict.detail}" for verdict in proved.proof.rejected)
            raise CheckFailedError(f"the patch does not hold: {found}", hint="auxtap patch shows every check")
        return WrittenPatch(proved)


@dataclass(frozen=True)
class WrittenPatch:
    """A capture patch whose static checks all hold."""

    proved: ProvedPatch = field(repr=False)

    @property
    def digest(self) -> str:
        """The sha256 of the patch."""
        return self.proved.patch_set.digest

    @property
    def data(self) -> bytes:
        """The patch in the zero-context form that is applied."""
        return self.proved.patch_set.patch

    @property
    def text(self) -> str:
        """The changes of SGLang's own files with three lines of context."""
        return self.proved.patch_set.for_people().decode(errors="replace")

    @property
    def plan(self) -> CapturePlan:
        """What it inserts and where."""
        return self.proved.patch_set.plan

    @property
    def server_flags(self) -> tuple[str, ...]:
        """What a server of the patched tree must be started with."""
        return self.plan.server_flags

    @property
    def checks(self) -> tuple[Verdict, ...]:
        """What was checked, and what was compared in each check."""
        return self.proved.proof.verdicts

    @property
    def level(self) -> str:
        """How far this very patch is proved: `static only` or `engine-proved`."""
        return self.proved.level.level

    def save(self, folder: str | Path) -> Path:
        """Write `FOLDER/sglang-<release>/`, as `auxtap patch --out FOLDER` does, and return that folder.

        Raises:
            PatchError: it cannot be written.
        """
        files = publish_patch(Path(folder), self.plan.release, self.data, self.proved.manifest)
        return files.patch.parent


def open_tree(spec: str, cache: CacheLayout, progress: Callable[[str], None]) -> OpenTree:
    """Open a tree; see `auxtap.open_source`."""
    source = open_source(spec, cache, progress)
    return OpenTree(source, spec, source.tree.release, source.commit, source.digest)
