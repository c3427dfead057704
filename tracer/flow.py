"""Follow each model class to the backbone that captures, and say where the way is broken."""

from collections.abc import Callable
from pathlib import PurePosixPath

from auxtap.tracer.classes import ClassIndex, FoundClass, Member
from auxtap.tracer.names import Kind, kind_of
from auxtap.tracer.report import FileTrace, Flow, FlowLink

_MAX_DEPTH = 4


class FlowFinder:
    """Builds flows from the sites of traced files; asks for the trace of further files as it meets them."""

    def __init__(self, index: ClassIndex, trace: Callable[[PurePosixPath], FileTrace]) -> None:
        self._index = index
        self._trace = trace

    def find_flow(self, found: FoundClass) -> Flow | None:
        """Return the chain from `found` to a backbone that collects states; None when there is none."""
        members = self._way_to_backbone(found, 0)
        if members is None:
            return None
        links = [FlowLink(found.name, found.file, found.outline.line, "entry class"), *self._inherited(found)]
        for member in members:
            how = f"self.{member.attribute} of {member.owner.name}"
            links.append(FlowLink(member.found.name, member.found.file, member.found.outline.line, how))
            links.extend(self._inherited(member.found))
        return Flow(found.name, tuple(links), self._setter_owner(found), self._breaks(found, members))

    def _inherited(self, found: FoundClass) -> list[FlowLink]:
        bases = self._index.lineage(found)[1:]
        used = [base for base in bases if self._has_sites(base)]
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

    def _roles(self, found: FoundClass) -> set[str]:
        roles: set[str] = set()
        for item in self._index.lineage(found):
            roles |= self._own_roles(item)
        return roles

    def _own_roles(self, found: FoundClass) -> set[str]:
        sites = self._trace(found.file).capture_sites
        return {site.role for site in sites if site.scope.split(".")[0] == found.name}

    def _has_sites(self, found: FoundClass) -> bool:
        return bool(self._own_roles(found))

    def _collects(self, found: FoundClass) -> bool:
        return "accumulator_init" in self._roles(found)

    def _setter_owner(self, found: FoundClass) -> str | None:
        for item in self._index.lineage(found):
            for method in item.outline.methods:
                if kind_of(method) is Kind.SETTER:
                    return f"{item.name}.{method}"
        return None

    def _breaks(self, found: FoundClass, members: list[Member]) -> tuple[str, ...]:
        breaks: list[str] = []
        backbone = members[-1].found if members else found
        if self._setter_owner(found) is None:
            inner = next((item.found for item in members if self._setter_owner(item.found) is not None), None)
            reason = f"{found.name} has no setter"
            if inner is not None:
                reason += f", although {inner.name} inside it has one: nothing can switch capture on"
            breaks.append(reason)
        backbone_roles = self._roles(backbone)
        if not {"append", "collector_hand_in"} & backbone_roles:
            breaks.append(f"{backbone.name} makes a list of states and never fills it")
        return tuple(breaks)
