"""Files that begin with a byte-order mark."""

from auxtap.core.hazards.row import Hazard

HAZARD = Hazard(
    name="byte_order_mark",
    reason="the file begins with a byte-order mark, which must stay in front when lines are added",
    trigger="editing this file",
    remedy="bytes are edited, not text",
)
