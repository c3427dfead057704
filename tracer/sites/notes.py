"""Say in one sentence what a role alone does not: each note is derived from the code around its site."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import libcst as cst
import libcst.matchers as m

from auxtap.tracer.branches.branch_roles import Branch
from auxtap.tracer.branches.stage_uses import accumulators_before, names_within
from auxtap.tracer.report.entries import CaptureSite, StageBranch
from auxtap.tracer.sites.capture_points import block_counts, condition_of, find_point
from auxtap.tracer.sites.site_roles import Site
from auxtap.tracer.source.bodies import assigned_locals
from auxtap.tracer.source.fragments import Fragment, last_name, source_of
from auxtap.tracer.source.occurrences import Occurrence
from auxtap.tracer.source.walk import find

_CONDITIONAL = ("layers_set", "setter_call")


def annotate_sites(sites: Sequence[Site]) -> list[CaptureSite]:
    """Return the entries of `sites` with their notes."""
    notes = {
        "gather": _gather_note,
        "append": _append_note,
        "collector_hand_in": _hand_in_note,
        "boundary_hand_in": _hand_in_note,
    }
    entries = []
    for site in sites:
        make = notes.get(site.entry.role)
        point = find_point(site)
        entries.append(
            replace(
                site.entry,
                note=None if make is None else make(site, sites),
                condition=condition_of(site) if site.entry.role in _CONDITIONAL else None,
                counts=block_counts(site) if site.entry.role in _CONDITIONAL else (),
                side=None if point is None else point.side,
                shift=None if point is None else point.shift,
                callee=_gathering(site) if site.entry.role == "gather" else None,
                under=_settings_around(site) if site.entry.role == "gather" else None,
                asks=_names_asked(site) if site.entry.role == "gather" else (),
                copies=site.entry.role == "append" and _gathered(site, sites) is not None,
            )
        )
    return entries


def annotate_branches(branches: Iterable[Branch]) -> list[StageBranch]:
    """Return the entries of `branches` with their notes."""
    notes: dict[str, Callable[[Branch], str | None]] = {
        "stage_entry": _entry_note,
        "first_stage_only": _first_stage_note,
        "last_stage_only": _last_stage_note,
    }
    entries = []
    for branch in branches:
        make = notes.get(branch.entry.role)
        note = None if make is None else make(branch)
        entries.append(replace(branch.entry, note=note, gathers_final_only=_gathers_final_only(branch)))
    return entries


def _gather_note(site: Site, sites: Sequence[Site]) -> str | None:
    value = _gather_call(site)
    if value is None:
        return None
    note = f"{last_name(value.func)} of {source_of(value.args[0].value)}"
    for argument in value.args[1:]:
        if argument.keyword is not None and argument.keyword.value == "dim":
            note += f" over dim {source_of(argument.value)}"
    under = _settings_around(site)
    return note if under is None else f"{note}; {under}"


def _gather_call(site: Site) -> cst.Call | None:
    assign = site.occurrence.fragment.parent_of(site.anchor)
    value = assign.value if isinstance(assign, cst.Assign) else None
    return value if isinstance(value, cst.Call) and value.args else None


def _gathering(site: Site) -> str | None:
    call = _gather_call(site)
    return None if call is None else last_name(call.func)


def _settings_around(site: Site) -> str | None:
    words = [_condition_words(test, site.occurrence) for test in _conditions_around(site.occurrence)]
    return " and ".join(words) if words else None


def _names_asked(site: Site) -> tuple[str, ...]:
    return tuple(sorted(names_within(_conditions_around(site.occurrence))))


def _conditions_around(occurrence: Occurrence) -> list[cst.BaseExpression]:
    """Return the conjuncts of the innermost branch in whose body the name stands."""
    node: cst.CSTNode = occurrence.reference
    for ancestor in occurrence.ancestors():
        if isinstance(ancestor, cst.If):
            return _conjuncts(ancestor.test) if ancestor.body is node else []
        if isinstance(ancestor, cst.For | cst.While | cst.FunctionDef):
            return []
        node = ancestor
    return []


def _conjuncts(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.And):
        return [*_conjuncts(test.left), *_conjuncts(test.right)]
    return [test]


def _disjuncts(test: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(test, cst.BooleanOperation) and isinstance(test.operator, cst.Or):
        return [*_disjuncts(test.left), *_disjuncts(test.right)]
    return [test]


def _condition_words(test: cst.BaseExpression, occurrence: Occurrence) -> str:
    if isinstance(test, cst.Attribute) and m.matches(test.value, m.Name("self")):
        setting = _where_set_true(test.attr.value, occurrence)
        if setting is not None:
            branch, fragment = setting
            return f"only with {_setting_words(branch.test)} (line {fragment.line_of(branch)})"
    return f"only for {source_of(test).replace('self.', '')}"


def _where_set_true(attribute: str, occurrence: Occurrence) -> tuple[cst.If, Fragment] | None:
    """Find the branch of the same class under which `self.<attribute>` becomes True."""
    class_name = occurrence.scope.split(".")[0]
    target = m.AssignTarget(target=m.Attribute(value=m.Name("self"), attr=m.Name(attribute)))
    pattern = m.Assign(targets=[target], value=m.Name("True"))
    for fragment in occurrence.source.fragments_with(attribute, class_name):
        for assign in find(fragment.module, cst.Assign, pattern):
            branches = (item for item in fragment.ancestors_of(assign) if isinstance(item, cst.If))
            branch = next(branches, None)
            if branch is not None:
                return branch, fragment
    return None


def _setting_words(test: cst.BaseExpression) -> str:
    """Put `backend().is_a() or backend().is_b()` into words; any other test is quoted."""
    names: list[str] = []
    for choice in _disjuncts(test):
        if not isinstance(choice, cst.Call) or not isinstance(choice.func, cst.Attribute):
            return source_of(test)
        owner = last_name(choice.func.value) or ""
        if "a2a" not in owner.split("_") or not choice.func.attr.value.startswith("is_"):
            return source_of(test)
        names.append(choice.func.attr.value.removeprefix("is_"))
    return f"the {' or '.join(names)} all-to-all backend"


def _append_note(site: Site, sites: Sequence[Site]) -> str | None:
    call = site.anchor
    if not isinstance(call, cst.Call):
        return None
    value = call.args[0].value
    original = _gathered(site, sites)
    if original is not None:
        twin = _other_append(source_of(original), site, sites)
        return None if twin is None else f"the gathered copy of the SAME quantity as line {twin.entry.line}"
    return _block_note(site, value)


def _gathered(site: Site, sites: Sequence[Site]) -> cst.BaseExpression | None:
    """Return what was gathered into the appended name just above, if it is such a name."""
    value = site.anchor.args[0].value if isinstance(site.anchor, cst.Call) and site.anchor.args else None
    if not isinstance(value, cst.Name):
        return None
    for other in sites:
        assign = other.occurrence.fragment.parent_of(other.anchor)
        same = other.entry.scope == site.entry.scope and other.entry.name == value.value
        if other.entry.role == "gather" and same and isinstance(assign, cst.Assign):
            gathered = assign.value
            return gathered.args[0].value if isinstance(gathered, cst.Call) and gathered.args else None
    return None


def _other_append(source: str, site: Site, sites: Sequence[Site]) -> Site | None:
    for other in sites:
        same = other.entry.role == "append" and other.entry.scope == site.entry.scope
        if same and other is not site and other.entry.value == source:
            return other
    return None


def _block_note(site: Site, value: cst.BaseExpression | None) -> str | None:
    """Say which side of which block a capture within the layer loop sees."""
    point = find_point(site)
    if point is None:
        return None
    if value is None or point.handed:
        return f"{point.side} of block {point.index}, taken inside it; not a final-layer state"
    normed = any("norm" in (last_name(call) or "") for call in find(value, cst.Call))
    norm = ", before its norm" if point.side == "input" and not normed else ""
    # What leaves a block may be what leaves the last one.
    return f"{point.side} of block {point.index}{norm}{'; not a final-layer state' if point.side == 'input' else ''}"


def _hand_in_note(site: Site, sites: Sequence[Site]) -> str | None:
    return _block_note(site, None)


def _entry_note(branch: Branch) -> str | None:
    use = branch.use
    taken: dict[str, str] = {}
    pattern = m.Assign(targets=[m.AssignTarget(target=m.Name())], value=m.Subscript(value=m.Name()))
    for statement in use.orelse or ():
        for assign in find(statement, cst.Assign, pattern):
            if isinstance(assign.value, cst.Subscript):
                taken[source_of(assign.targets[0].target)] = source_of(assign.value.value)
    if not taken or len(set(taken.values())) != 1:
        return None
    holder = _annotated_class(use.occurrence, next(iter(taken.values())))
    return f"first stage embeds, later stages take {' and '.join(taken)} from {holder}"


def _annotated_class(occurrence: Occurrence, parameter: str) -> str:
    """Return the class that annotates a parameter, `X` for `Optional[X]`; else the parameter's own name."""
    function = occurrence.function
    params = () if function is None else (*function.params.params, *function.params.kwonly_params)
    for param in params:
        if param.name.value == parameter and param.annotation is not None:
            names = (name.value for name in find(param.annotation, cst.Name))
            classes = [name for name in names if name not in {"Optional", "None"}]
            if len(classes) == 1:
                return classes[0]
    return parameter


def _context_parallel_call(branch: Branch, word: str) -> cst.Call | None:
    """Return a context-parallel call (`cp_<word>...`) in the branch whose result rebinds what it is given."""
    for statement in branch.use.body or ():
        for assign in find(statement, cst.Assign):
            if not isinstance(assign.value, cst.Call):
                continue
            words = (last_name(assign.value.func) or "").split("_")
            if "cp" in words and word in words and assigned_locals([assign]) & names_within(assign.value.args):
                return assign.value
    return None


def _first_stage_note(branch: Branch) -> str | None:
    return "context-parallel split of the embedded input" if _context_parallel_call(branch, "split") else None


def _last_stage_note(branch: Branch) -> str | None:
    if not _gathers_final(branch):
        return None
    note = "context-parallel gather of the final state"
    return f"{note}; the aux states are not gathered" if _gathers_final_only(branch) else note


def _gathers_final(branch: Branch) -> bool:
    return any(_context_parallel_call(branch, word) is not None for word in ("gather", "allgather"))


def _gathers_final_only(branch: Branch) -> bool:
    if branch.entry.role != "last_stage_only" or not _gathers_final(branch):
        return False
    states = accumulators_before(branch.use)
    return bool(states) and not states & names_within(branch.use.body or ())
