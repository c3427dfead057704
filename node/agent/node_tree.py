"""Make the patched tree: a copy of the node's SGLang with the patch's lines put in, every byte checked."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from auxtap.core.errors import PatchError, SourceError, WorktreeError
from auxtap.core.files import publish_json, sha256_bytes, sha256_file
from auxtap.core.patch_text import PatchTextError, read_patch, with_inserted
from auxtap.core.source_tree import PACKAGE_MARK, PACKAGE_ROOT, find_package, is_below, package_files
from auxtap.node.agent.node_folder import NodeFolder

# Written at build time or left out of a wheel; neither is anything that a server runs.
_VERSION = str(PACKAGE_ROOT / "_version.py")
_TESTS = str(PACKAGE_ROOT / "test") + "/"
_NAMED = 3


@dataclass(frozen=True)
class TreePlan:
    """What a tree is made of: `files` are the digests of upstream's `.py` files, `after` those that the patch makes.

    `patch` is the patch itself; `patch_digest` its sha256.
    """

    source: Path
    release: str
    patch: bytes
    patch_digest: str
    source_digest: str
    files: Mapping[str, str]
    after: Mapping[str, str]


def require_package(source: Path) -> Path:
    """Return the `sglang` package of a checkout, of a folder of packages, or of the package itself.

    Raises:
        SourceError: there is none.
    """
    package = find_package(source)
    if package is None:
        raise SourceError(
            f"{source} on the node is not an SGLang tree: no sglang/{PACKAGE_MARK} in it",
            hint="node.sglang names a checkout or an installed sglang folder",
        )
    return package


def digest_package(package: Path) -> "dict[str, str]":
    """Return the sha256 of every `.py` file, by its path in upstream's layout."""
    return {str(inner): sha256_file(path) for inner, path in package_files(package) if inner.suffix == ".py"}


def differing(found: "Mapping[str, str]", wanted: "Mapping[str, str]") -> "list[str]":
    """Return the paths that one side lacks or that differ, ascending."""
    paths = (path for path in {*found, *wanted} if path != _VERSION and not path.startswith(_TESTS))
    return sorted(path for path in paths if found.get(path) != wanted.get(path))


def make_tree(plan: TreePlan, folder: NodeFolder) -> "dict[str, Any]":
    """Make the tree of `plan`, or find it as it was made; both are checked file by file.

    Raises:
        SourceError: the node's SGLang is not the one that the patch was made for.
        WorktreeError: the tree was changed since, or cannot be written.
    """
    if sha256_bytes(plan.patch) != plan.patch_digest:
        raise WorktreeError("the patch arrived damaged", hint="run the same command again")
    name = f"sglang-{plan.release}-{plan.patch_digest[:12]}-{plan.source_digest[:12]}"
    tree, record = folder.trees / name, folder.trees / f"{name}.json"
    if record.is_file():
        _require_made(tree, plan)
        return {"tree": str(tree), "made": False}
    package = require_package(plan.source)
    wrong = differing(digest_package(package), plan.files)
    if wrong:
        raise SourceError(
            f"{package} on the node is not the SGLang {plan.release} that the patch was made for: "
            f"{len(wrong)} files differ, {', '.join(wrong[:_NAMED])} among them",
            hint="put the checkout at that release and clean it (git status), or make the patch from this tree",
        )
    shutil.rmtree(tree, ignore_errors=True)
    try:
        _copy(package, tree / PACKAGE_ROOT)
        _patch(tree, plan)
        _require_made(tree, plan)
        publish_json(record, {"release": plan.release, "patch_digest": plan.patch_digest, "source": str(plan.source)})
    except OSError as error:
        shutil.rmtree(tree, ignore_errors=True)
        raise WorktreeError(
            f"cannot write {tree} on the node: {error.strerror or error}", hint="nothing was left behind; make room"
        ) from None
    except shutil.Error as error:
        shutil.rmtree(tree, ignore_errors=True)
        raise WorktreeError(f"cannot copy to {tree} on the node: {error.args[0][0][2]}", hint="make room") from None
    except BaseException:
        shutil.rmtree(tree, ignore_errors=True)
        raise
    return {"tree": str(tree), "made": True}


def _copy(package: Path, target: Path) -> None:
    shutil.copytree(package, target, ignore=shutil.ignore_patterns("__pycache__"), ignore_dangling_symlinks=True)


def _patch(tree: Path, plan: TreePlan) -> None:
    try:
        for change in read_patch(plan.patch):
            if not is_below(change.path, PACKAGE_ROOT):
                raise PatchTextError(f"{change.path} is outside {PACKAGE_ROOT}")
            path = tree / change.path
            data = with_inserted(b"" if change.is_new else path.read_bytes(), change)
            path.parent.mkdir(parents=True, exist_ok=True)
            if not change.is_new:
                path.chmod(0o644)
            path.write_bytes(data)
    except PatchTextError as error:
        raise PatchError(f"the patch does more than insert: {error}") from None


def _require_made(tree: Path, plan: TreePlan) -> None:
    wanted = {**plan.files, **plan.after}
    wrong = differing(digest_package(tree / PACKAGE_ROOT), wanted)
    if wrong:
        raise WorktreeError(
            f"{tree} on the node is not what the patch makes: {', '.join(wrong[:_NAMED])} differ",
            hint="somebody changed it: remove that folder and the .json beside it on the node",
        )
