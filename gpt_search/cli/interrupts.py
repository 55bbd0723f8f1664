"""What stops a run from outside: Ctrl-C, SIGTERM, SIGHUP. Each stops it once, and none gets lost.

Python turns a signal into an exception wherever the program happens to be. Compiled modules that are being imported at
that moment may swallow the exception, or raise another one in its place (seen with `numpy.random`: one in ten). So the
signal is remembered as well, and whoever shows progress asks for it.
"""

from __future__ import annotations

import signal
import time
from types import FrameType

IMPATIENT_S = 10.0
SIGNALLED = 128
"""Plus the number of the signal that ended a run: its exit code."""

_came: list[KeyboardInterrupt | SystemExit] = []


def came() -> KeyboardInterrupt | SystemExit | None:
    """What a signal raised in this run, whether it has been seen since or not; None where there was no signal."""
    return _came[0] if _came else None


def raise_lost() -> None:
    """Raises what a signal raised before: whoever calls this would not run any more, had it not been lost."""
    if _came:
        raise _came[0]


def forget() -> None:
    """The run has ended, and with it what its signals mean."""
    _came.clear()


def terminate(number: int, frame: FrameType | None) -> None:
    """A handler that ends the run with the exit code for the signal."""
    _raise(SystemExit(SIGNALLED + number))


def interrupted_once() -> None:
    """Ctrl-C stops the run once: those within the next IMPATIENT_S seconds change nothing.

    The first one ends workers, stores trials and shows how to go on, and a second one in the middle of that
    would lose the rest of it. Where the clean end takes longer than that, one more breaks it off.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # ignored, as in a shell's background job, or somebody else's
    first: float | None = None

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            _raise(KeyboardInterrupt())
        if time.monotonic() - first > IMPATIENT_S:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)


def _raise(stop: KeyboardInterrupt | SystemExit) -> None:
    _came.append(stop)
    raise stop
