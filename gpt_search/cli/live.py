"""Progress while a study runs: one line that renews itself on a terminal, plain lines elsewhere. On standard error."""

from __future__ import annotations

import errno
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from gpt_search.cli.common import wrapped
from gpt_search.cli.errors import INTERRUPTED, UNEXPECTED, Stopped
from gpt_search.cli.interrupts import SIGNALLED, came, forget, raise_lost, terminate
from gpt_search.domain.outcome import Outcome

if TYPE_CHECKING:
    from rich.live import Live

    from gpt_search.domain.budget import Budget
    from gpt_search.run.result import Status
    from gpt_search.store.study import StudyStore

PLAIN_WIDTH = 80


def clock_text(seconds: float) -> str:
    """`0:42`, `12:03`, `1:02:03`."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def speedup_text(speedup: float) -> str:
    """`0.042x`, `1.038x`, `12.35x`, `123x`: three decimals where they mean something."""
    if speedup >= 99.995:
        return f"{speedup:.0f}x" if speedup < 1e6 else f"{speedup:.0e}x"
    return f"{speedup:.2f}x" if speedup >= 9.9995 else f"{speedup:.3f}x"


def status_line(status: Status, budget: Budget) -> str:
    """One line of at most 80 columns: this trial, best so far, feasible share, budget used, time left.

    What does not fit any more is left out, the least important first: the number of the best trial,
    the number of trials allowed.
    """
    found = status.evaluation
    if status.trial == 0:
        return f"reference: {status.reference_ms:.4g} ms"
    if found.outcome is not Outcome.OK:
        this = found.outcome.name.lower().replace("_", " ")
    elif found.latency_ms is not None:
        this = speedup_text(status.reference_ms / found.latency_ms)
    else:
        this = f"{found.until.name.lower()} only"
    limit = "" if budget.trials is None else str(budget.trials)
    best = f"best {speedup_text(1 / status.best_ratio)}"
    share = f"ok {100 * status.feasible / max(1, status.finished):.0f}%"
    used = f"used {100 * status.used:.0f}%"
    left = "" if status.left_s is None else f"{clock_text(status.left_s)} left"
    line = ""
    for with_number, with_limit in ((True, True), (False, True), (False, False)):
        trial = f"trial {status.trial:>{len(limit)}}" + (f"/{limit}" if limit and with_limit else "")
        which = f" (#{status.best_trial})" if with_number else ""
        line = "  ".join(part for part in (f"{trial}: {this:<8}", best + which, share, used, left) if part)
        if len(line) <= PLAIN_WIDTH:
            break
    return line[:PLAIN_WIDTH]


class LiveProgress:
    """Shows a running study; a context manager. Its methods fit `run.tune`'s `progress` and `started`."""

    def __init__(self, budget: Budget | None) -> None:
        """budget: None until the study tells it."""
        self.budget = budget
        self.continue_command: str | None = None
        """The command line that goes on from here, once there is something to go on from."""
        self._live: Live | None = None

    def __enter__(self) -> LiveProgress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            # Without a thread that redraws: it would take time from what is being timed.
            self._live = Live(console=Console(stderr=True), transient=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        live, self._live = self._live, None
        if live is not None:
            with suppress(OSError):  # a terminal that went away needs no tidying
                live.stop()

    def preparing(self, what: str) -> None:
        """Shown on a terminal until the study starts; a reader of plain lines need not know."""
        if self._live is not None:
            self._line(f"preparing: {what}")

    def started(self, store: StudyStore) -> None:
        """Remembers how to go on, and says what is about to run."""
        from gpt_search.domain.budget import Budget

        self.continue_command = store.resume_command
        if self.budget is None:
            self.budget = Budget(**store.attr("budget"))
        count = len(store.space)
        then = "the reference comes first" if store.created else "going on where it stopped"
        self._line(f"study {store.name}: {count} knob{'s' if count != 1 else ''}; {then}")

    def progress(self, status: Status) -> None:
        """After every trial."""
        assert self.budget is not None
        if status.trial == 0 and status.evaluation.latency_ms is None:
            return  # the study ends with an error that says why
        self._line(status_line(status, self.budget))

    def step(self, done: int, total: int, what: str, doing: str = "confirming: build") -> None:
        """Before every build of a confirmation, or every step of what is being done."""
        self._line(f"{doing} {done + 1}/{total} ({what})")

    def building(self, doing: str, done: int, most: int, what: str) -> None:
        """Before every build of something whose number of builds is not known in advance, but at most about `most`."""
        self._line(f"{doing}: build {done + 1}, at most about {most} ({what})")

    def compiling(self, phase: str, done: int, steps: int) -> None:
        """What a backend tells of a build on its way; shown on a terminal only."""
        if self._live is not None:
            count = f" {done}/{steps}" if steps > 0 else ""
            self._line(f"building: {' '.join(phase.split())}{count}")

    def note(self, text: str) -> None:
        """A remark that stays."""
        width = PLAIN_WIDTH if self._live is None else min(PLAIN_WIDTH, self._live.console.width)
        shown = wrapped(text, width, first="note: ", indent="      ")
        if self._live is None:
            click.echo(shown, err=True)
            return
        from rich.text import Text

        with _to_terminal():
            self._live.console.print(Text(shown))

    def _line(self, text: str) -> None:
        raise_lost()
        if self._live is None:
            click.echo(text if len(text) <= PLAIN_WIDTH else f"{text[: PLAIN_WIDTH - 3]}...", err=True)
            return
        from rich.text import Text

        with _to_terminal():
            self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


@contextmanager
def _to_terminal() -> Iterator[None]:
    """A terminal that went away refuses what is written; that may be seen before the signal that says so."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise SystemExit(SIGNALLED + signal.SIGHUP) from None


@contextmanager
def stoppable(live: LiveProgress) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP stop cleanly: workers end, finished trials are stored, and how to go on is shown.

    Raises Stopped where there is a command to go on with.
    """

    # SIGHUP comes where the terminal goes away; under nohup it is ignored, and stays so.
    caught = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, terminate) for number in caught}
    try:
        with live:
            yield
    except BaseException as error:
        stop = error if isinstance(error, KeyboardInterrupt | SystemExit) else came()
        if stop is None:
            raise
        if live.continue_command is None:
            raise stop from None
        if isinstance(stop, KeyboardInterrupt):
            code = INTERRUPTED
        else:
            code = stop.code if isinstance(stop.code, int) else UNEXPECTED
        raise Stopped(live.continue_command, code) from None
    finally:
        forget()
        for number, handler in before.items():
            signal.signal(number, handler)
