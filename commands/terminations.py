"""End as Ctrl-C ends when the system asks for it."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def terminations_interrupt() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C, so that servers are stopped and folders tidied whichever way it comes."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    # Who asked to be deaf to a hang-up (nohup) stays so.
    heard = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
