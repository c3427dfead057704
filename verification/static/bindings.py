"""Which names are certainly bound where a statement stands."""

import ast
from collections.abc import Iterator, Sequence

_Function = ast.FunctionDef | ast.AsyncFunctionDef


def statement_at(module: ast.Module, line: int) -> ast.stmt | None:
    """Return the outermost statement that begins at `line`, None when none does."""
    found = [node for node in _over(module, line) if isinstance(node, ast.stmt) and node.lineno == line]
    return max(found, key=lambda node: (node.end_lineno or 0, -node.col_offset), default=None)


def unbound_names(module: ast.Module, statement: ast.stmt) -> tuple[str, ...]:
    """Return the names that `statement` reads and that may be unbound when it runs.

    A name of the enclosing function counts when it is a parameter or is assigned on every way to the statement;
    any other when the module's own level binds it by then, or for a statement within a function, at all.
    """
    function = _enclosing_function(module, statement)
    read = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    if function is None:
        return tuple(sorted(read - _bound_before(module.body, statement)))
    own = _parameters(function) | _stored_in(function)
    bound = _bound_before(function.body, statement, _parameters(function))
    at_module_level = _bound_before(module.body, None)
    return tuple(sorted(name for name in read if name not in (bound if name in own else at_module_level)))


def _enclosing_function(module: ast.Module, statement: ast.stmt) -> _Function | None:
    over = _over(module, statement.lineno)
    found = [node for node in over if isinstance(node, _Function) and _holds(node.body, statement)]
    return max(found, key=lambda node: node.lineno, default=None)


def _holds(body: Sequence[ast.stmt], statement: ast.stmt) -> bool:
    return any(node is statement for outer in body for node in _over(outer, statement.lineno))


def _over(node: ast.AST, line: int) -> Iterator[ast.AST]:
    """Yield `node` and what is below it of statements and their parts, leaving out those that do not reach `line`."""
    end: int | None = getattr(node, "end_lineno", None)
    if end is not None and not getattr(node, "lineno", line) <= line <= end:
        return
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from _over(child, line)


def _parameters(function: _Function) -> set[str]:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    named += [extra for extra in (arguments.vararg, arguments.kwarg) if extra is not None]
    return {argument.arg for argument in named}


def _stored_in(function: _Function) -> set[str]:
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}


def _bound_before(body: Sequence[ast.stmt], stop: ast.stmt | None, start: set[str] | None = None) -> set[str]:
    """Return what is bound when `stop` begins, or at the end of `body` without one."""
    bound = set(start or ())
    for statement in body:
        if statement is stop:
            return bound
        if stop is not None and _holds([statement], stop):
            return _bound_within(statement, stop, bound)
        bound = _after(statement, bound)
    return bound


def _bound_within(statement: ast.stmt, stop: ast.stmt, bound: set[str]) -> set[str]:
    if isinstance(statement, ast.For | ast.AsyncFor):
        bound = bound | _names(statement.target)
    if isinstance(statement, ast.With | ast.AsyncWith):
        bound = bound | _with_names(statement)
    for block in _blocks(statement):
        if _holds(block, stop):
            return _bound_before(block, stop, bound)
    return bound


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        if block := getattr(statement, field, None):
            yield block
    for handler in getattr(statement, "handlers", ()):
        yield handler.body


def _after(statement: ast.stmt, bound: set[str]) -> set[str]:
    match statement:
        case ast.Assign(targets=targets):
            return bound.union(*map(_names, targets))
        case ast.AnnAssign(target=target, value=value) if value is not None:
            return bound | _names(target)
        case ast.Delete(targets=targets):
            return bound.difference(*map(_names, targets))
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return bound | {(name.asname or name.name).partition(".")[0] for name in names}
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return bound | {name}
        case ast.With(body=body) | ast.AsyncWith(body=body):
            return _bound_before(body, None, bound | _with_names(statement))
        case ast.If(body=body, orelse=orelse):
            ways = [_bound_before(way, None, bound) for way in (body, orelse) if not _leaves(way)]
            return set.intersection(*ways) if ways else bound
    return bound - _deleted_in(statement)


def _leaves(block: Sequence[ast.stmt]) -> bool:
    return bool(block) and isinstance(block[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)


def _deleted_in(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del)}


def _with_names(statement: ast.With | ast.AsyncWith) -> set[str]:
    return set().union(*(_names(item.optional_vars) for item in statement.items if item.optional_vars))


def _names(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
