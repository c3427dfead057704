"""Make auxtap's plugin known to a Python in which auxtap is not installed."""

from pathlib import Path

from auxtap.core.cache import CacheLayout
from auxtap.core.errors import ServerError
from auxtap.core.files import publish_bytes, sha256_bytes
from auxtap.core.version import __version__

PLUGIN_GROUP, PLUGIN_NAME = "sglang.srt.plugins", "auxtap"
PACKAGE = Path(__file__).resolve().parent.parent


def make_plugin_home(cache: CacheLayout) -> Path:
    """Return a folder for `PYTHONPATH` that holds this auxtap and its entry point, and nothing else.

    The folder in which auxtap is installed will not do: the tool's dependencies lie there too, and would hide
    SGLang's own.

    Raises:
        ServerError: it cannot be made.
    """
    # Of its own for every place in which auxtap is installed: they may share a cache.
    home = cache.root / "plugin" / f"{__version__}-{sha256_bytes(str(PACKAGE).encode())[:12]}"
    link, record = home / "auxtap", home / f"auxtap-{__version__}.dist-info"
    try:
        publish_bytes(record / "METADATA", f"Metadata-Version: 2.1\nName: auxtap\nVersion: {__version__}\n".encode())
        publish_bytes(
            record / "entry_points.txt", f"[{PLUGIN_GROUP}]\n{PLUGIN_NAME} = auxtap.serving.plugin:load\n".encode()
        )
        if not link.is_symlink() or link.readlink() != PACKAGE:
            fresh = home / ".auxtap.new"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(PACKAGE)
            fresh.replace(link)
    except OSError as error:
        raise ServerError(
            f"cannot make {error.filename or home}: {error.strerror}",
            hint="name a cache that can be written with AUXTAP_CACHE",
        ) from None
    return home
