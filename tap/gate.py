"""The switch. With `AUXTAP_SPOOL` unset this is all of auxtap that a server imports."""

import os

tap = None
if os.environ.get("AUXTAP_SPOOL"):
    from . import engine as tap  # type: ignore[assignment]  # noqa: F401
