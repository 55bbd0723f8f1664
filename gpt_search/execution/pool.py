"""The workers of an evaluator: which are idle, which hold the reference, and what the first one said of the backend."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gpt_search.backends.base import Capabilities, Fingerprints, Placement
from gpt_search.execution.devices import DeviceLock
from gpt_search.execution.launcher import BuildProgress, Worker, WorkerSpec


class EvaluatorClosed(Exception):
    """The evaluator was closed while a route was being evaluated; nothing is known about the route."""


class WorkerPool:
    """Starts workers, takes them back, and kills all of them when it is closed. Any number of threads may use it.

    workers: all that live. holders: those that hold the reference in their second slot; warm: those whose engines are
    warmed up; reference: the reference's own worker, where it has one. on_progress: of builds, in workers started from
    then on.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        """Starts nothing yet."""
        self.workers: set[Worker] = set()
        self.holders: set[Worker] = set()
        self.warm: set[Worker] = set()
        self.reference: Worker | None = None
        self.closed = False
        self.lock: DeviceLock | None = None
        self.on_progress: BuildProgress | None = None
        self._spec = spec
        self._mutex = threading.Lock()
        self._first_start = threading.Lock()
        self._idle: list[Worker] = []
        self._ready: Mapping[str, Any] | None = None

    @property
    def asked(self) -> bool:
        """Whether a worker has said already what the backend is."""
        return self._ready is not None

    def facts(self) -> Mapping[str, Any]:
        """What a worker says of the backend. Starts one to ask. Raises WorkerFailed, InputError."""
        with self._first_start:
            if self._ready is None:
                worker = self.start()
                self.put_back(worker)
                self._ready = worker.ready
                self.lock = DeviceLock(worker.ready["device_id"])
        return self._ready

    @property
    def capabilities(self) -> Capabilities:
        """What the backend can do. Starts a worker to ask. Raises WorkerFailed, InputError."""
        ready = self.facts()
        return Capabilities(
            Fingerprints[ready["fingerprint"]],
            ready["build_uses_device"],
            Placement[ready["placement"]],
            tuple(ready["metrics"]),
        )

    def idle(self) -> Worker | None:
        """One that has nothing to do; whoever takes it puts it back.

        One that somebody has killed meanwhile is forgotten: the next route is not to be blamed for its death.
        """
        while True:
            with self._mutex:
                worker = self._idle.pop() if self._idle else None
            if worker is None or worker.running:
                return worker
            worker.kill()
            self.put_back(worker)

    def start(self) -> Worker:
        """A new one. Raises EvaluatorClosed, and as `Worker` does."""
        self.check_open()
        worker = Worker(self._spec)
        worker.on_progress = self.on_progress
        with self._mutex:
            self.workers.add(worker)
        if self.closed:
            worker.kill()
            raise EvaluatorClosed
        return worker

    def put_back(self, worker: Worker) -> None:
        """Takes a worker back; a dead one, or any after the end, is forgotten."""
        with self._mutex:
            if worker.alive and not self.closed:
                self._idle.append(worker)
                return
            self.workers.discard(worker)
            self.holders.discard(worker)
            self.warm.discard(worker)
        worker.kill()

    def check_open(self) -> None:
        """Raises EvaluatorClosed after the end."""
        if self.closed:
            raise EvaluatorClosed

    @contextmanager
    def device(self, *, shared: bool) -> Iterator[float]:
        """Holds the device; gives the seconds that it took to get it."""
        assert self.lock is not None
        with self.lock.hold(shared=shared, check=self.check_open) as waited:
            yield waited

    def close(self) -> None:
        """Kills all workers; whoever uses one in another thread finds it dead, and the pool closed."""
        with self._mutex:
            self.closed = True
            workers = list(self.workers)
            self.workers.clear()
            self._idle.clear()
            self.holders.clear()
        for worker in workers:
            worker.kill()
