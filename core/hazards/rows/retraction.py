"""Requests that are taken back."""

from auxtap.core.hazards.row import Hazard

HAZARD = Hazard(
    name="retraction",
    reason="a request that is taken back runs again later: its rows come twice",
    trigger="too little memory for the running requests",
    remedy="rows are kept by request and offset, so that the second time changes nothing",
)
