"""Follow the collector: what it takes must be the state that entered the block, and safe from later writes."""

from dataclasses import replace

import libcst as cst

from auxtap.tracer.blocks.expressions import GATHERS, MOVED
from auxtap.tracer.blocks.kernels import PRESERVES, Given, Kernels
from auxtap.tracer.blocks.naming import Names
from auxtap.tracer.blocks.values import FALSE, OTHER, Kind, Value, Way, decided

# What a boundary says of storage that a collector may keep as it is (0.5.21 on).
_RETAINABLE = frozenset({"capture_move_allocates", "input_retainable", PRESERVES, GATHERS})
_COPYING_MARK = "copies_on_append"


class Taking(Kernels):
    """Evaluates calls of the collector; `copies` and `takes` say of it what `Collector` does."""

    def __init__(self, names: Names, *, copies: bool, takes: frozenset[str]) -> None:
        super().__init__(names)
        self.copies = copies
        self.takes = takes

    def take(self, node: cst.Call, callee: Value, given: tuple[Given, ...], way: Way) -> Way:
        """Follow the collector taking a value.

        Raises:
            ObjectedError: it is not the state that entered the block, or not safe from later writes.
        """
        if callee.label not in self.takes:
            self.refuse(node, f"what the collector's .{callee.label} does is not known")
        owned = next((each.value for each in given if each.keyword == "owned"), FALSE)
        if (
            not given
            or given[0].keyword is not None
            or given[0].star
            or len(given) > 1 + (given[-1].keyword == "owned")
        ):
            self.refuse(node, "what the collector is given is not known")
        value = given[0].value
        taken = replace(way, taken=(*way.taken, self.place(node)))
        if way.taken:
            self.refuse(node, "the collector takes a second state on one way through the block")
        self._check_value(node, value, way)
        if value.label != MOVED and self.moves_rows(way):
            self.refuse(node, "its rows were not moved to where those that are taken belong")
        borrowed = owned.kind is Kind.FALSE and self.copies
        copied = borrowed or (owned.kind is not Kind.TRUE and owned.label in _RETAINABLE)
        if not copied and not value.own:
            self.refuse(node, "later code may write over what it keeps: it is neither copied nor storage of its own")
        return taken

    def moves_rows(self, way: Way) -> bool:
        """Tell whether rows have to move before they are taken; see `Calls`."""
        raise NotImplementedError

    def _check_value(self, node: cst.Call, value: Value, way: Way) -> None:
        whole = way.is_lone and way.owed is None and (value.own or not way.spent)
        if value.kind is Kind.SUM or (value.kind is Kind.STATE and whole):
            return
        reasons = {
            Kind.STATE: "the state is taken without the residual that belongs to it",
            Kind.RESIDUAL: "the residual is taken without the state that belongs to it",
            Kind.DERIVED: "what is taken has been through a norm or a layer",
            Kind.CHANGED: f"what is taken is not the state that entered the block: {value.label}",
        }
        self.refuse(node, reasons.get(value.kind, "what is taken is not known"))

    def got(self, node: cst.Call, given: tuple[Given, ...]) -> Value:
        holder, name = given[0].value, given[1].value.label if len(given) > 1 else ""
        if holder.kind is Kind.COLLECTOR:
            if name != _COPYING_MARK:
                self.refuse(node, "what is asked of the collector is not known")
            return decided(self.copies)
        return OTHER
