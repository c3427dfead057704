"""Measure the house: lines, files, folders, arrows and circles between modules, names and functions that stand twice.

`house.py` prints what is here, `house.py --against REF` what a commit had beside it, and `house.py --check` fails when
something is over its budget: `make check` runs that.
"""

import argparse
import ast
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from statistics import median

ROOT = Path(__file__).resolve().parents[2]
# No part of what is installed.
OUTSIDE = ("tests", "fixtures", "docs", "examples", "benchmarks")
# Their files are named after commands, or copied into another package: they may be called as another's are.
OWN_NAMES = ("commands", "tap")
LEAST_LINES = 6
# What there may be at most; lower it when the house has become smaller.
BUDGET = {"circles of modules": 0, "names that stand twice": 0, "functions that stand twice": 0}


@dataclass(frozen=True)
class Module:
    """A Python file of the package, by its path from the root."""

    path: PurePosixPath
    text: str

    @property
    def name(self) -> str:
        """What it is imported as, below `auxtap`."""
        return ".".join(self.path.with_suffix("").parts).removesuffix("__init__").removesuffix(".")

    @property
    def n_lines(self) -> int:
        """Its lines."""
        return len(self.text.splitlines())


def read_modules(root: Path) -> list[Module]:
    """Read what git tracks of the package; tests and the like are left out."""
    listed = subprocess.check_output(["git", "ls-files", "*.py"], cwd=root, text=True).split()
    paths = [PurePosixPath(name) for name in sorted(listed)]
    inside = [path for path in paths if path.parts[0] not in OUTSIDE]
    return [Module(path, (root / path).read_text()) for path in inside]


def measure(root: Path) -> dict[str, str]:
    """Return the figures of a checkout, by name."""
    modules = read_modules(root)
    arrows = find_arrows(modules)
    lines = sorted((module.n_lines, str(module.path)) for module in modules if module.n_lines > 3)
    rooms = {module.path.parent for module in modules}
    between = {(rooms_of(one), rooms_of(two)) for one, others in arrows.items() for two in others}
    return {
        "lines of the package": f"{sum(module.n_lines for module in modules):,}",
        "files": str(len(modules)),
        "folders": str(len(rooms)),
        "median file": f"{median(n for n, _ in lines):.0f}",
        "longest file": f"{lines[-1][0]} ({lines[-1][1]})",
        "files over 300 lines": str(sum(n > 300 for n, _ in lines)),
        "arrows between folders": str(sum(one != two for one, two in between)),
        "circles of modules": str(len(find_circles(arrows))),
        "names that stand twice": str(len(find_doubles(modules))),
        "functions that stand twice": str(len(find_copies(modules))),
        "lines of the tests": f"{sum(_n_lines(root, 'tests/*.py')):,}",
        "lines of generated/": f"{sum(_n_lines(root, 'generated/*')):,}",
        "lines of docs/": f"{sum(_n_lines(root, 'docs/*')):,}",
    }


def rooms_of(module: str) -> str:
    """Return the folder of a module, by its name."""
    return module.rpartition(".")[0]


def _n_lines(root: Path, pattern: str) -> Iterator[int]:
    for name in subprocess.check_output(["git", "ls-files", pattern], cwd=root, text=True).splitlines():
        yield (root / name).read_bytes().count(b"\n")


def find_arrows(modules: list[Module]) -> dict[str, set[str]]:
    """Return which module imports which, also inside functions; what only a type checker imports is no arrow."""
    known = {module.name for module in modules}
    arrows: dict[str, set[str]] = {module.name: set() for module in modules}
    for module in modules:
        for name in _imports(ast.parse(module.text)):
            inner = name.removeprefix("auxtap.")
            while inner and inner not in known:
                inner = inner.rpartition(".")[0]
            if name.startswith("auxtap.") and inner and inner != module.name:
                arrows[module.name].add(inner)
    return arrows


def _imports(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.level == 0:
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        yield from _imports(child)


def find_circles(arrows: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """Return groups of modules each of which reaches all others of its group."""
    reach = {name: _reached(name, arrows) for name in arrows}
    groups = {tuple(sorted(two for two in reach[one] if one in reach[two])) for one in arrows}
    return sorted(group for group in groups if len(group) > 1)


def _reached(start: str, arrows: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        for name in arrows[waiting.pop()] - found:
            found.add(name)
            waiting.append(name)
    return found


def find_doubles(modules: list[Module]) -> dict[str, list[PurePosixPath]]:
    """Return file names that stand more than once, with their places."""
    places: dict[str, list[PurePosixPath]] = defaultdict(list)
    for module in modules:
        if module.path.stem != "__init__" and module.path.parts[0] not in OWN_NAMES:
            places[module.path.stem].append(module.path)
    return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}


def find_copies(modules: list[Module]) -> list[tuple[str, str]]:
    """Return pairs of functions of some lines that are the same but for the names in them."""
    seen: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in ast.walk(ast.parse(module.text)):
            if isinstance(node, ast.FunctionDef) and _n_body_lines(node) >= LEAST_LINES:
                seen[_shape(node)].append(f"{module.path}:{node.lineno} {node.name}")
    return [(places[0], other) for places in seen.values() for other in places[1:]]


def _body(function: ast.FunctionDef) -> list[ast.stmt]:
    return function.body[1:] if ast.get_docstring(function) is not None else function.body


def _n_body_lines(function: ast.FunctionDef) -> int:
    body = _body(function)
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def _shape(function: ast.FunctionDef) -> str:
    """Return a function without its name, its docstring, and the names of what is its own."""
    body = _body(function)
    own = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    own |= {node.id for part in body for node in ast.walk(part) if isinstance(node, ast.Name) and _is_bound(node)}
    order: dict[str, str] = {}
    tree = ast.parse(ast.unparse(ast.Module([ast.Expr(ast.Constant(0)), *body], [])))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in own:
            node.id = order.setdefault(node.id, f"n{len(order)}")
    return ast.dump(tree)


def _is_bound(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def over_budget(root: Path) -> list[str]:
    """Say what is more than it may be."""
    modules = read_modules(root)
    found: dict[str, list[str]] = {
        "circles of modules": [" > ".join(circle) for circle in find_circles(find_arrows(modules))],
        "names that stand twice": [", ".join(map(str, paths)) for paths in find_doubles(modules).values()],
        "functions that stand twice": [" = ".join(pair) for pair in find_copies(modules)],
    }
    return [
        f"{len(places)} {what}, {BUDGET[what]} allowed:\n  " + "\n  ".join(places)
        for what, places in found.items()
        if len(places) > BUDGET[what]
    ]


def main() -> int:
    """Print the figures, or what is over its budget."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--against", metavar="REF", help="a commit whose figures are printed first")
    parser.add_argument("--check", action="store_true", help="fail when something is over its budget")
    asked = parser.parse_args()
    if asked.check:
        excess = over_budget(ROOT)
        print("\n".join(excess) or f"within the budget: {', '.join(BUDGET)}")
        return 1 if excess else 0
    now = measure(ROOT)
    before = dict.fromkeys(now, "")
    if asked.against:
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["git", "clone", "--quiet", "--shared", "--no-checkout", ROOT, folder], check=True)
            subprocess.run(["git", "checkout", "--quiet", asked.against], cwd=folder, check=True)
            before = measure(Path(folder))
    for name, value in now.items():
        print(f"{name:28}  {before[name]:>50}  {value}" if asked.against else f"{name:28}  {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
