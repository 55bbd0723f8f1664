"""TensorRT's log and progress: kept for each build, and a build can be cancelled."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import tensorrt as trt

LOG_FOLDER_VARIABLE = "GPT_SEARCH_TENSORRT_LOGS"
"""Environment variable: the folder that logs are written to, one file for each build."""

_KEPT_LINES = 50_000
_SERIOUS = ("INTERNAL_ERROR", "ERROR", "WARNING")

Progress = Callable[[str, int, int], None]
"""Called with a phase's name, the steps done and their number."""


class Line(NamedTuple):
    """One message of TensorRT's log; severity as TensorRT names it: INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE."""

    severity: str
    text: str


class RouteLog:
    """The messages of one piece of work; the newest are kept where there are very many."""

    def __init__(self, echo: bool = False) -> None:
        """echo: errors and warnings also go to standard error, a worker's log, where they outlive a crash."""
        self._echo = echo
        self.lines: deque[Line] = deque(maxlen=_KEPT_LINES)

    def add(self, severity: str, text: str) -> None:
        """Keeps a message."""
        line = Line(severity, text.strip())
        self.lines.append(line)
        if self._echo and severity in _SERIOUS:
            print(f"TensorRT {severity}: {line.text}", file=sys.stderr, flush=True)

    def of(self, *severities: str) -> list[str]:
        """The messages of these severities, each once, in order of appearance."""
        return list(dict.fromkeys(line.text for line in self.lines if line.severity in severities))

    @property
    def errors(self) -> list[str]:
        """The messages that say why something failed."""
        return self.of("INTERNAL_ERROR", "ERROR")

    def write(self, folder: Path, name: str) -> Path:
        """Writes everything to a file of that name in a folder, which is made; a number keeps names apart."""
        folder.mkdir(parents=True, exist_ok=True)
        number = 0
        while True:
            path = folder / (f"{name}.log" if not number else f"{name}-{number}.log")
            try:
                with path.open("x", encoding="utf-8", errors="backslashreplace") as file:
                    file.writelines(f"[{line.severity}] {line.text}\n" for line in self.lines)
                return path
            except FileExistsError:
                number += 1


def log_folder() -> Path | None:
    """Where whole logs are wanted, or None."""
    given = os.environ.get(LOG_FOLDER_VARIABLE, "")
    return Path(given) if given else None


class Logs:
    """One logger of TensorRT for the whole process, and the log that it writes to at the moment.

    TensorRT takes the first logger that a process shows it and ignores every later one, so there is one for
    each library, and `recording` says where its messages go.
    """

    _by_module: dict[str, Logs] = {}  # noqa: RUF012

    def __init__(self, trt: Any) -> None:
        """Use `of`: a second logger would be ignored by TensorRT."""
        logs = self

        class Logger(trt.ILogger):  # type: ignore[misc, name-defined, unused-ignore]
            def __init__(self) -> None:
                trt.ILogger.__init__(self)

            def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
                logs.current.add(severity.name, msg)

        self.current = RouteLog()
        self.logger: trt.ILogger = Logger()

    @classmethod
    def of(cls, trt: Any) -> Logs:
        """The logger of a TensorRT module, made once."""
        name = str(trt.__name__)
        if name not in cls._by_module:
            cls._by_module[name] = cls(trt)
        return cls._by_module[name]

    @contextmanager
    def recording(self, echo: bool = False) -> Iterator[RouteLog]:
        """A fresh log for what TensorRT says within the block; echo as for `RouteLog`."""
        before, self.current = self.current, RouteLog(echo)
        try:
            yield self.current
        finally:
            self.current = before


def progress_monitor(trt: Any, cancelled: threading.Event, report: Progress | None) -> trt.IProgressMonitor:
    """A monitor that reports phases and stops the build once `cancelled` is set.

    TensorRT asks between steps: a long step is finished first. Only a worker's timeout ends that.
    """

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc, name-defined, unused-ignore]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self._steps: dict[str, int] = {}

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = num_steps
            self._tell(phase_name, 0)

        def step_complete(self, phase_name: str, step: int) -> bool:
            self._tell(phase_name, step + 1)
            return not cancelled.is_set()

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

        def _tell(self, phase_name: str, done: int) -> None:
            if report is not None:
                report(phase_name, done, self._steps.get(phase_name, done))

    return Monitor()
