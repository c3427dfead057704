"""End as Ctrl-C ends when the system asks for it."""

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def terminations_interrupt() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C, so that servers are stopped and folders tidied whichever way it comes.

    A hang-up that comes again is nobody's wish to break off the tidying: a terminal that closes sends several.
    """

    def interrupt(number: int, frame: object) -> None:
        if signal.SIGHUP in before:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        raise KeyboardInterrupt

    # Who asked to be deaf to a hang-up (nohup) stays so.
    heard = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.getsignal(number) for number in heard}
    for number in heard:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
