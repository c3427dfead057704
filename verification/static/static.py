"""Prove, without running a server, that a patch does what it says and nothing else."""

import ast
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from auxtap.checkout.repository import GitError
from auxtap.checkout.source import Source
from auxtap.core.errors import AuxtapError
from auxtap.core.files import sha256_bytes
from auxtap.core.patch_text import PatchedFile, PatchTextError, read_patch, without_inserted
from auxtap.core.source_tree import MODELS_ROOT
from auxtap.rewriters.patch.diff import write_patch
from auxtap.rewriters.patch.manifest import Manifest
from auxtap.rewriters.patch.plan import TAP_ROOT, plan_capture
from auxtap.tracer.reading.trees import Readings
from auxtap.verification.static.bindings import statement_at, unbound_names
from auxtap.verification.static.inertness import argument_faults, gate_faults, is_gate_import, probe_faults
from auxtap.verification.static.pinned_tree import PinnedTree, pinned_tree
from auxtap.verification.static.tap_reads import value_faults
from auxtap.verification.static.verdicts import Proof, Rejected, Verdict, judge

# Upstream files outside models/ that get lines, and the lines that one file may get: the gate, and one or two
# statements of two lines, of four where the formatter breaks the call.
MAX_CORE_FILES = 4
MIN_LINES_A_FILE, MAX_LINES_A_FILE = 3, 9
# The tap runs under the interpreters that SGLang supports.
TAP_PYTHON = (3, 10)


@dataclass(frozen=True)
class Candidate:
    """A patch to be judged on a source: its bytes, what they say, and the manifest that goes with them."""

    source: Source
    patch: bytes
    manifest: Manifest
    files: tuple[PatchedFile, ...]
    readings: Readings

    @property
    def upstream(self) -> tuple[PatchedFile, ...]:
        """The upstream files that get lines."""
        return tuple(file for file in self.files if not file.is_new)

    @property
    def added(self) -> tuple[PatchedFile, ...]:
        """The files that the patch adds."""
        return tuple(file for file in self.files if file.is_new)

    @cached_property
    def before(self) -> Mapping[PurePosixPath, bytes]:
        """The original bytes of the upstream files."""
        tree = self.source.tree.files
        return {file.path: tree[file.path] for file in self.upstream if file.path in tree}


@dataclass(frozen=True)
class Patched:
    """What git made of a candidate: the content of every file of the patch, and the paths that changed."""

    candidate: Candidate
    after: Mapping[PurePosixPath, bytes]
    changed: tuple[PurePosixPath, ...]

    @cached_property
    def modules(self) -> Mapping[PurePosixPath, ast.Module | None]:
        """The syntax tree of every file, None for one that does not parse."""
        return {path: _parsed(data) for path, data in self.after.items()}

    @property
    def tap(self) -> dict[str, bytes]:
        """The tap's files by name."""
        return {path.name: data for path, data in self.after.items() if path.parent == TAP_ROOT}


def verify_static(source: Source, patch: bytes, manifest: Manifest, readings: Readings | None = None) -> Proof:
    """Judge a patch and its manifest on the pinned tree; nothing of the source's repository is written.

    Raises:
        SourceError: git cannot be used.
    """
    try:
        files = read_patch(patch)
    except PatchTextError as error:
        return Proof((Rejected("form", str(error)),))
    candidate = Candidate(source, patch, manifest, files, readings or Readings())
    verdicts = [check(candidate) for check in (_identity, _digests_before, _size, _regenerates, _values_known)]
    try:
        with pinned_tree(source.repository, source.commit) as tree:
            verdicts += _verify_on_tree(candidate, tree)
    except GitError as error:
        verdicts.append(Rejected("applies", f"git: {error}"))
    return Proof(tuple(verdicts))


def _verify_on_tree(candidate: Candidate, tree: PinnedTree) -> Iterator[Verdict]:
    tree.apply(candidate.patch, check=True)
    tree.apply(candidate.patch)
    patched = Patched(candidate, tree.read(file.path for file in candidate.files), tree.changed())
    yield judge("applies", (), f"git apply --check on commit {candidate.source.commit[:12]}")
    for check in _CHECKS_AFTER:
        yield check(patched)
    yield _refused_twice(candidate, tree)
    yield _reverses(candidate, tree)


def _identity(candidate: Candidate) -> Verdict:
    manifest, source = candidate.manifest, candidate.source
    faults = []
    if sha256_bytes(candidate.patch) != manifest.patch_sha256:
        faults.append("the patch is not the one that the manifest describes")
    if source.digest != manifest.origin.source_digest:
        faults.append(f"the source is {source.digest[:12]}, the manifest's is {manifest.origin.source_digest[:12]}")
    return judge("identity", faults, f"patch {manifest.patch_sha256[:12]} for source {source.digest[:12]}")


def _digests_before(candidate: Candidate) -> Verdict:
    faults = []
    for file in candidate.upstream:
        listed, data = candidate.manifest.files.get(file.path), candidate.before.get(file.path)
        if data is None:
            faults.append(f"{file.path} is not in the source")
        elif listed is None or listed.before != sha256_bytes(data):
            faults.append(f"{file.path} differs from the file that the patch was made for")
    return judge("digests before", faults, f"{len(candidate.upstream)} files as the manifest says")


def _size(candidate: Candidate) -> Verdict:
    upstream = candidate.upstream
    n_lines = sum(len(file.inserted) for file in upstream)
    core = [file for file in upstream if file.path.parent != MODELS_ROOT]
    faults = [f"{len(core)} files outside models/ get lines"] if len(core) > MAX_CORE_FILES else []
    faults += [
        f"{file.path} gets {len(file.inserted)} lines"
        for file in upstream
        if not MIN_LINES_A_FILE <= len(file.inserted) <= MAX_LINES_A_FILE
    ]
    found = f"{len(upstream)} upstream files ({len(core)} outside models/, at most {MAX_CORE_FILES}), {n_lines} lines"
    return judge("size", faults, f"{found} ({MIN_LINES_A_FILE} to {MAX_LINES_A_FILE} a file)")


def _regenerates(candidate: Candidate) -> Verdict:
    manifest = candidate.manifest
    try:
        plan = plan_capture(candidate.source.tree, manifest.models, manifest.layers, candidate.readings)
        again = write_patch(candidate.source.tree, plan).patch
    except AuxtapError as error:
        return Rejected("regenerates", error.message)
    faults = [] if again == candidate.patch else [f"writing it again gives {sha256_bytes(again)[:12]}"]
    return judge("regenerates", faults, "written again from the source: the same bytes")


def _values_known(candidate: Candidate) -> Verdict:
    faults = value_faults(candidate.source.tree)
    return judge("values known", faults, "what the tap reads of SGLang stands where it reads it, from where it should")


def _digests_after(patched: Patched) -> Verdict:
    manifest = patched.candidate.manifest
    expected = {path: digests.after for path, digests in manifest.files.items()} | dict(manifest.new_files)
    faults = [
        f"{path} is not what the manifest says"
        for path, digest in expected.items()
        if path not in patched.after or sha256_bytes(patched.after[path]) != digest
    ]
    faults += [
        f"{path} changed, which the manifest does not list" for path in sorted(set(patched.changed) - set(expected))
    ]
    faults += [f"{path} did not change" for path in sorted(set(expected) - set(patched.changed))]
    return judge("digests after", faults, f"{len(expected)} files as the manifest says, no other path changed")


def _parsed(data: bytes) -> ast.Module | None:
    try:
        with warnings.catch_warnings(action="ignore"):
            return ast.parse(data)
    except (SyntaxError, ValueError):
        return None


def _parses(patched: Patched) -> Verdict:
    faults = [f"{path} does not parse" for path, module in patched.modules.items() if module is None]
    for name, data in patched.tap.items():
        try:
            ast.parse(data, feature_version=TAP_PYTHON)
        except (SyntaxError, ValueError):
            faults.append(f"{name} does not parse under Python {TAP_PYTHON[0]}.{TAP_PYTHON[1]}")
    return judge("parses", faults, f"{len(patched.after)} files")


def _compiles(patched: Patched) -> Verdict:
    faults = []
    for path, data in patched.after.items():
        try:
            with warnings.catch_warnings(action="ignore"):
                compile(data, str(path), "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            faults.append(f"{path}: {error}")
    return judge("compiles", faults, f"{len(patched.after)} files")


def _insertion_only(patched: Patched) -> Verdict:
    faults = []
    for file in patched.candidate.upstream:
        try:
            original = without_inserted(patched.after.get(file.path, b""), file)
        except PatchTextError as error:
            faults.append(str(error))
            continue
        if original != patched.candidate.before.get(file.path):
            faults.append(f"{file.path} without the inserted lines is not the original")
    faults += [f"{file.path} is no file of the tap" for file in patched.candidate.added if file.path.parent != TAP_ROOT]
    return judge("insertion only", faults, "inserted lines taken out = the original bytes; 0 lines removed")


def _inserted_statements(patched: Patched) -> Iterator[tuple[PurePosixPath, ast.Module, int, ast.stmt | None]]:
    """Yield the statements that the inserted lines are; None for a line that is not wholly one's."""
    for file in patched.candidate.upstream:
        module = patched.modules.get(file.path)
        lines = {inserted.line for inserted in file.inserted}
        while module is not None and lines:
            first = min(lines)
            statement = statement_at(module, first)
            own = set() if statement is None else set(range(first, (statement.end_lineno or first) + 1))
            yield file.path, module, first, statement if own and own <= lines else None
            lines -= own or {first}


def _names_bound(patched: Patched) -> Verdict:
    faults, n_statements = [], 0
    for path, module, line, statement in _inserted_statements(patched):
        unbound = () if statement is None else unbound_names(module, statement)
        n_statements += 1
        faults += [f"{path}:{line} reads {name}, which may be unbound there" for name in unbound]
    return judge("names bound", faults, f"every name of {n_statements} statements is bound where it is read")


def _inert(patched: Patched) -> Verdict:
    engine = patched.modules.get(TAP_ROOT / "engine.py") or ast.Module([], [])
    faults = []
    for path, module, line, statement in _inserted_statements(patched):
        if statement is None:
            faults.append(f"{path}:{line} is no statement of its own")
        elif is_gate_import(statement):
            faults += [] if statement in module.body else [f"{path}:{line}: the gate is not at module level"]
        else:
            faults += [f"{path}: {fault}" for fault in argument_faults(statement, engine)]
    return judge("inert statements", faults, "each is the gate's import or one call behind a None test")


def _gate_alone(patched: Patched) -> Verdict:
    broken = any(patched.modules.get(TAP_ROOT / name) is None for name in ("__init__.py", "gate.py"))
    if broken:
        return Rejected("gate alone", "the tap has no gate that parses")
    faults = [*gate_faults(patched.tap), *probe_faults(patched.tap)]
    return judge("gate alone", faults, "switch off, imported in a fresh interpreter: the gate module and nothing else")


def _refused_twice(candidate: Candidate, tree: PinnedTree) -> Verdict:
    try:
        tree.apply(candidate.patch, check=True)
    except GitError as error:
        said = str(error).splitlines()[0].removeprefix("error: ")
        return judge("refused twice", (), f"git: {said}")
    return Rejected("refused twice", "git would apply the patch a second time")


def _reverses(candidate: Candidate, tree: PinnedTree) -> Verdict:
    try:
        tree.apply(candidate.patch, reverse=True)
    except GitError as error:
        return Rejected("reverses", f"git: {error}")
    faults = [f"{path} is not the original again" for path in tree.changed()]
    return judge("reverses", faults, "git apply --reverse gives the pinned tree back")


_CHECKS_AFTER: tuple[Callable[[Patched], Verdict], ...] = (
    _digests_after,
    _parses,
    _compiles,
    _insertion_only,
    _names_bound,
    _inert,
    _gate_alone,
)
