"""Progress while a study runs: one line that renews itself on a terminal, plain lines elsewhere. On standard error."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from gpt_search.domain.outcome import Outcome

if TYPE_CHECKING:
    from rich.live import Live

    from gpt_search.domain.budget import Budget
    from gpt_search.run.result import Status
    from gpt_search.store.study import StudyStore

PLAIN_WIDTH = 80
TERMINATED = 143


def clock_text(seconds: float) -> str:
    """`0:42`, `12:03`, `1:02:03`."""
    whole = round(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def status_line(status: Status, budget: Budget) -> str:
    """One line of at most 80 columns: this trial, best so far, feasible share, budget used, time left."""
    of = f"/{budget.trials}" if budget.trials is not None else ""
    found = status.evaluation
    if status.trial == 0:
        return f"reference: {status.reference_ms:.4g} ms"
    if found.outcome is Outcome.OK and found.latency_ms is not None:
        this = f"{status.reference_ms / found.latency_ms:.3f}x"
    else:
        this = found.outcome.name.lower() if found.outcome is not Outcome.OK else f"{found.until.name.lower()} only"
    best = f"best {1 / status.best_ratio:.3f}x (#{status.best_trial})"
    share = f"ok {100 * status.feasible / max(1, status.finished):.0f}%"
    left = "" if status.left_s is None else f", {clock_text(status.left_s)} left"
    used = f"used {100 * status.used:.0f}%"
    return f"trial {status.trial}{of}: {this:<11} {best}  {share}  {used}, {clock_text(status.clock_s)}{left}"


class LiveProgress:
    """Shows a running study; a context manager. Its methods fit `run.tune`'s `progress` and `started`."""

    def __init__(self, budget: Budget | None) -> None:
        """budget: None until the study tells it."""
        self.budget = budget
        self.store: StudyStore | None = None
        self.resume_command: str | None = None
        self._live: Live | None = None

    def __enter__(self) -> LiveProgress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), transient=True, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def started(self, store: StudyStore) -> None:
        """Remembers how to resume, and says what is about to run."""
        from gpt_search.domain.budget import Budget

        self.resume_command = store.resume_command
        if self.budget is None:
            self.budget = Budget(**store.attr("budget"))
        count = len(store.space)
        self._line(f"study {store.name}: {count} knob{'s' if count != 1 else ''}; the reference comes first")

    def progress(self, status: Status) -> None:
        """After every trial."""
        assert self.budget is not None
        self._line(status_line(status, self.budget))

    def step(self, done: int, total: int, what: str) -> None:
        """Before every build of a confirmation."""
        self._line(f"confirming: build {done + 1}/{total} ({what})")

    def note(self, text: str) -> None:
        """A line that stays."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False)
        else:
            click.echo(text, err=True)

    def _line(self, text: str) -> None:
        if self._live is None:
            click.echo(text, err=True)
            return
        from rich.text import Text

        self._live.update(Text(text, no_wrap=True, overflow="ellipsis"))


@contextmanager
def stoppable(live: LiveProgress) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop cleanly: workers end, finished trials are stored, and the resume command is shown."""

    def terminate(number: int, frame: FrameType | None) -> None:
        raise SystemExit(TERMINATED)

    before: Any = signal.signal(signal.SIGTERM, terminate)
    try:
        with live:
            yield
    except (KeyboardInterrupt, SystemExit):
        if live.resume_command is not None:
            click.echo(f"stopped; nothing that was finished is lost. Continue with:\n  {live.resume_command}", err=True)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
