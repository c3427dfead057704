"""A layer may leave its all-reduce to the next one; what is captured between the two is a partial sum."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import libcst as cst
import libcst.matchers as m

from auxtap.core.source_tree import SRT_ROOT
from auxtap.tracer.flow.classes import ClassIndex
from auxtap.tracer.flow.evidence import evidence_at, evidence_of, find_in, module_constant
from auxtap.tracer.hazards.capturing import sites_of
from auxtap.tracer.hazards.found import Found
from auxtap.tracer.hazards.settings import SERVER_ARGS, Settings
from auxtap.tracer.report.entries import FileTrace
from auxtap.tracer.report.trace_report import Evidence
from auxtap.tracer.source.fragments import Fragment, SourceFile, source_of
from auxtap.tracer.source.walk import find

_MARK = "_sglang_needs_allreduce_fusion"
_SETTINGS = ("flashinfer_allreduce_fusion_backend", "enable_flashinfer_allreduce_fusion")
_COMMUNICATOR = SRT_ROOT / "layers/communicator.py"
_OVERRIDES = (SERVER_ARGS, SRT_ROOT / "arg_groups/overrides.py")
_PLATFORMS = {"sm90": "H100/H200 (SM90)", "sm100": "B200 (SM100)"}


@dataclass(frozen=True)
class _AutoOn:
    """Where the server switches the fusion on by itself, for which architectures, on which machines."""

    evidence: Evidence
    architectures: tuple[str, ...]
    hardware: str | None


def fused_all_reduce(index: ClassIndex, settings: Settings, trace: FileTrace) -> Iterator[Found]:
    """Report a model whose layers set the mark and whose loop captures sums of its own."""
    sites = [site for site in sites_of(trace, "append") if site.side is not None and not site.copies]
    if not sites:
        return
    source = index.source(trace.file)
    target = m.AssignTarget(target=m.Attribute(attr=m.Name(_MARK)))
    marks = list(find_in(source, _MARK, cst.Assign, m.Assign(targets=[target], value=m.Name("True"))))
    if not marks:
        return
    setting, limit, auto = _setting(index), _limit(index), _auto_on(index)
    evidence = [evidence_at(source, *marks[0]), *(evidence_of(trace, site) for site in sites)]
    evidence.extend(item for item in (limit, auto.evidence if auto else None) if item is not None)
    yield Found(
        trigger=_trigger(setting, limit, auto),
        settings=(setting,),
        default_on=auto is not None,
        hardware=None if auto is None else auto.hardware,
        evidence=tuple(evidence),
    )


def _setting(index: ClassIndex) -> str:
    """Return the setting that the fusion of this release asks for."""
    data = index.tree.files.get(_COMMUNICATOR, b"")
    return next((name for name in _SETTINGS if name.encode() in data), _SETTINGS[-1])


def _trigger(setting: str, limit: Evidence | None, auto: _AutoOn | None) -> str:
    trigger = f"{setting} with tensor parallelism"
    if limit is not None:
        trigger += f", forwards of at most {limit.code.partition('=')[2].strip()} tokens"
    if auto is not None and auto.architectures:
        trigger += f"; the server turns it on by itself for {', '.join(auto.architectures)}"
    return trigger


def _limit(index: ClassIndex) -> Evidence | None:
    """Return the line that sets the largest forward for which the all-reduce is fused."""
    if _COMMUNICATOR not in index.tree.files:
        return None
    source = index.source(_COMMUNICATOR)
    target = m.ComparisonTarget(operator=m.LessThanEqual(), comparator=m.Name())
    for name in _SETTINGS:
        for _, bound in find_in(source, name, cst.ComparisonTarget, target):
            constant = module_constant(source, source_of(bound.comparator))
            if constant is not None:
                return constant[0]
    return None


def _auto_on(index: ClassIndex) -> _AutoOn | None:
    for path in _OVERRIDES:
        if path in index.tree.files:
            source = index.source(path)
            for name in _SETTINGS:
                for fragment, node in _switched_on(source, name):
                    branch = next((item for item in fragment.ancestors_of(node) if isinstance(item, cst.If)), None)
                    names = () if branch is None else _architectures(source, branch.test)
                    if branch is not None and names:
                        return _AutoOn(evidence_at(source, fragment, node), names, _hardware(branch.test))
    return None


def _switched_on(source: SourceFile, name: str) -> Iterator[tuple[Fragment, cst.CSTNode]]:
    """Yield where the setting gets a value that switches it on: an attribute of self, or an entry that is returned."""
    off = m.Name("None") | m.Name("False")
    target = m.AssignTarget(target=m.Attribute(value=m.Name("self"), attr=m.Name(name)))
    key = m.DictElement(key=m.SimpleString(m.MatchIfTrue(lambda text: text.strip("\"'") == name)))
    yield from find_in(source, f"self.{name} = ", cst.Assign, m.Assign(targets=[target], value=~off))
    for fragment, entry in find_in(source, f'"{name}":', cst.DictElement, key):
        if not m.matches(entry.value, off):
            yield fragment, entry


def _architectures(source: SourceFile, test: cst.BaseExpression) -> tuple[str, ...]:
    listed = m.ComparisonTarget(operator=m.In())
    names: list[str] = []
    for target in find(test, cst.ComparisonTarget, listed):
        collection: cst.CSTNode = target.comparator
        if isinstance(collection, cst.Name):
            constant = module_constant(source, collection.value)
            collection = collection if constant is None else constant[1]
        names.extend(_strings(collection))
    return tuple(dict.fromkeys(names))


def _strings(node: cst.CSTNode) -> Iterable[str]:
    return (str(item.raw_value) for item in find(node, cst.SimpleString))


def _hardware(test: cst.BaseExpression) -> str | None:
    words = {word for name in find(test, cst.Name) for word in name.value.split("_")}
    known = [title for word, title in _PLATFORMS.items() if word in words]
    return " or ".join(known) if known else None
