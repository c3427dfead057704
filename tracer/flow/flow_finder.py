"""Follow each model class to the backbone that captures, and say where the way is broken."""

from collections.abc import Callable
from pathlib import PurePosixPath

import libcst as cst

from auxtap.tracer.flow.classes import ClassIndex, FoundClass, Member
from auxtap.tracer.flow.flow_steps import CAPTURES, find_steps
from auxtap.tracer.report.entries import CaptureSite, FileTrace
from auxtap.tracer.report.trace_report import Flow, FlowLink
from auxtap.tracer.source.names import Kind, kind_of
from auxtap.tracer.source.walk import find

_MAX_DEPTH = 4
# ModelRunner asks the signature of the entry's forward for this very name before it hands over a stage's input.
_STAGE_INPUT = "pp_proxy_tensors"
_SWITCHES = ("flag_set", "layers_set", "setter_call")
_CHOICES = frozenset({"layers_set", "setter_call", "layer_mark", "setter_read"})


class FlowFinder:
    """Builds flows from the sites of traced files; asks for the trace of further files as it meets them."""

    def __init__(self, index: ClassIndex, trace: Callable[[PurePosixPath], FileTrace]) -> None:
        self._index = index
        self._trace = trace

    def find_flow(self, found: FoundClass) -> Flow | None:
        """Return the chain from `found` to a backbone that collects states.

        None when there is none, unless the class has a switch all the same: then the chain is broken there.
        """
        members = self._way_to_backbone(found, 0)
        entry = FlowLink(found.name, found.file, found.outline.line, "entry class")
        if members is None:
            if not any(site.role in _SWITCHES for site in self._own_sites(found)):
                return None
            reason = f"{found.name} has a switch, and no class that can be followed from it collects states"
            return Flow(found.name, (entry,), self._setter_owner(found), (reason,))
        links = [entry, *self._inherited(found)]
        for member in members:
            how = f"self.{member.attribute} of {member.owner.name}"
            found_at = member.found.file, member.found.outline.line
            links.append(FlowLink(member.found.name, *found_at, how, member.attribute))
            links.extend(self._inherited(member.found))
        backbone = members[-1].found if members else found
        points = self._points(backbone)
        shifts = {site.shift for site in points if site.shift is not None}
        sides = {site.side for site in points if site.shift is not None}
        return Flow(
            model=found.name,
            links=tuple(links),
            setter=self._setter_owner(found),
            breaks=self._breaks(found, members),
            steps=find_steps(self._index, links, self._trace),
            side=sides.pop() if len(sides) == 1 else None,
            shift=shifts.pop() if len(shifts) == 1 else None,
            reaches_end=any(site.role in CAPTURES and _is_behind_loop(site) for site in self._sites(backbone)),
        )

    def _inherited(self, found: FoundClass) -> list[FlowLink]:
        bases = self._index.lineage(found)[1:]
        used = [base for base in bases if self._own_sites(base)]
        return [FlowLink(base.name, base.file, base.outline.line, "inherited from") for base in used]

    def _way_to_backbone(self, found: FoundClass, depth: int) -> list[Member] | None:
        if depth > _MAX_DEPTH:
            return None
        if self._collects(found):
            return []
        for member in self._index.members(found):
            way = self._way_to_backbone(member.found, depth + 1)
            if way is not None:
                return [member, *way]
        return None

    def _sites(self, found: FoundClass) -> list[CaptureSite]:
        return [site for item in self._index.lineage(found) for site in self._own_sites(item)]

    def _own_sites(self, found: FoundClass) -> list[CaptureSite]:
        sites = self._trace(found.file).capture_sites
        return [site for site in sites if site.scope.split(".")[0] == found.name]

    def _points(self, backbone: FoundClass) -> list[CaptureSite]:
        return [site for site in self._sites(backbone) if site.role in CAPTURES]

    def _collects(self, found: FoundClass) -> bool:
        return any(site.role == "accumulator_init" for site in self._sites(found))

    def _setter_owner(self, found: FoundClass) -> str | None:
        for item in self._index.lineage(found):
            setters = [method for method in item.outline.methods if kind_of(method) is Kind.SETTER]
            if setters:
                # The one for EAGLE-3 where there are several: it has the default layers.
                return f"{item.name}.{min(setters, key=lambda name: (not name.startswith('set_eagle3'), name))}"
        return None

    def _breaks(self, found: FoundClass, members: list[Member]) -> tuple[str, ...]:
        breaks: list[str] = []
        backbone = members[-1].found if members else found
        setter = self._setter_owner(found)
        if setter is None:
            inner = next((item.found for item in members if self._setter_owner(item.found) is not None), None)
            reason = f"{found.name} has no setter"
            if inner is not None:
                reason += f", although {inner.name} inside it has one: nothing can switch capture on"
            breaks.append(reason)
        elif not _CHOICES & {site.role for site in self._sites(found) if site.scope == setter}:
            breaks.append(f"{setter} chooses no layers")
        if not any(site.role in CAPTURES for site in self._sites(backbone)):
            breaks.append(f"{backbone.name} makes a list of states and never fills it")
        if _STAGE_INPUT in self._forward_parameters(backbone) and not self._may_be_staged(found):
            breaks.append(
                f"{found.name}.forward takes no {_STAGE_INPUT}, although {backbone.name}.forward does: "
                "it cannot run in pipeline stages"
            )
        return tuple(breaks)

    def _may_be_staged(self, found: FoundClass) -> bool:
        """Tell whether the entry's forward takes a stage's input, or stands outside the tree where none can tell."""
        parameters = self._forward_parameters(found)
        return not parameters or _STAGE_INPUT in parameters

    def _forward_parameters(self, found: FoundClass) -> set[str]:
        """Return the names that `forward` takes, from the nearest class that has one."""
        for owner in self._index.lineage(found):
            source = self._index.source(owner.file)
            for unit in source.outline.units:
                if unit.classes == (owner.name,) and unit.name == "forward":
                    return {param.name.value for param in find(source.fragment(unit).module, cst.Param)}
        return set()


def _is_behind_loop(site: CaptureSite) -> bool:
    """Tell whether a capture of the forward stands outside the loop over blocks."""
    return site.side is None and site.scope.endswith(".forward") and "pp_proxy" not in (site.value or "")
