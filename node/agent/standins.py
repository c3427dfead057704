"""What extraction takes for granted and a node's bare Python 3.10 may lack."""

import datetime
import importlib.util
import sys
import typing


def install_standins() -> None:
    """Put stand-ins where a module or a name is missing; what the node has is used as it is."""
    if not hasattr(datetime, "UTC"):
        setattr(datetime, "UTC", datetime.timezone.utc)  # noqa: B010, UP017 - not there for a type checker of 3.10
    if not hasattr(typing, "Self"):
        setattr(typing, "Self", typing.Any)  # noqa: B010
    if importlib.util.find_spec("httpx") is None:
        from auxtap.node.agent import plain_http

        sys.modules["httpx"] = plain_http
    if importlib.util.find_spec("numpy") is None:
        from auxtap.node.agent import plain_finite

        sys.modules["auxtap.extraction.spool.finite"] = plain_finite
