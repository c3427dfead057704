"""The entry point: find the patch that fits the SGLang of this process and put it to work."""

import importlib.util
import logging
import os
from pathlib import Path

from auxtap.serving.plugin.importing import TAP_PACKAGE, install
from auxtap.serving.plugin.patches import FittingPatch, PluginRefusedError, find_fitting_patch
from auxtap.serving.profile import ENV_PATCH
from auxtap.tap.protocol import (
    ENV_PATCH_DIGEST,
    ENV_RELEASE,
    ENV_SOURCE_DIGEST,
    ENV_SPOOL,
    ENV_WAY,
    PLUGIN_WAY,
)

logger = logging.getLogger("sglang.srt.auxtap")


def load() -> None:
    """Put the capture patch into this process; nothing happens unless `AUXTAP_SPOOL` switches the tap on.

    Raises:
        SystemExit: no patch fits this SGLang. SGLang logs a plugin's errors and goes on; a server that was asked to
            capture and would not must not start.
    """
    if not os.environ.get(ENV_SPOOL):
        return
    try:
        if importlib.util.find_spec(TAP_PACKAGE) is not None:
            logger.info("auxtap: this tree is patched already; the plugin stands aside")
            return
        package = _package_folder()
        fitting = find_fitting_patch(package, _own_patch())
        _announce(fitting)
        install(fitting, package)
    except PluginRefusedError as error:
        raise SystemExit(f"auxtap: refused: {error}") from None
    logger.info("auxtap: plugin for SGLang %s, patch %s", fitting.release, fitting.patch_digest[:12])


def _package_folder() -> Path:
    spec = importlib.util.find_spec("sglang.srt")
    if spec is None or spec.submodule_search_locations is None:
        raise PluginRefusedError("there is no package sglang.srt")
    return Path(next(iter(spec.submodule_search_locations))).parent


def _own_patch() -> Path | None:
    named = os.environ.get(ENV_PATCH)
    return Path(named) if named else None


def _announce(fitting: FittingPatch) -> None:
    """Say to the tap, which publishes it, what the server runs; whatever was said before is not believed."""
    os.environ[ENV_WAY] = PLUGIN_WAY
    os.environ[ENV_RELEASE] = fitting.release
    os.environ[ENV_PATCH_DIGEST] = fitting.patch_digest
    os.environ[ENV_SOURCE_DIGEST] = fitting.source_digest
