"""Calls from several threads at once: what the throughput of an engine is measured with."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from time import perf_counter_ns

import numpy as np
from numpy.typing import NDArray

from gpt_search.backends.base import TimingRequest

Call = Callable[[], object]


def timed_streams(
    streams: Sequence[Callable[[], AbstractContextManager[Call]]], request: TimingRequest
) -> NDArray[np.float64]:
    """Runs each stream in a thread of its own: float64 (calls,), ms, each call's latency over the number of streams.

    streams: what to enter in a stream's thread; it gives the call. A stream whose own timed calls are done goes
    on, unmeasured, until all are, so that every timed call runs under the full load. Raises what a call raises.
    """
    return _Run(streams, request).samples()


class _Run:
    """One round of all streams."""

    def __init__(self, streams: Sequence[Callable[[], AbstractContextManager[Call]]], request: TimingRequest) -> None:
        n = len(streams)
        self._streams, self._request = streams, request
        self._least, self._most = max(1, -(-request.min_calls // n)), max(1, request.max_calls // n)
        self._warmup = -(-request.warmup_calls // n)
        self._limit = int(request.seconds * 1e9)
        self._start = threading.Barrier(n)
        self._mutex = threading.Lock()
        self._unfinished = n
        self._over = threading.Event()
        self._done: list[list[tuple[int, int]]] = [[] for _ in range(n)]  # (end, latency) of each call, ns
        self._errors: list[BaseException] = []

    def samples(self) -> NDArray[np.float64]:
        threads = [threading.Thread(target=self._stream, args=(i,), daemon=True) for i in range(len(self._streams))]
        collecting = gc.isenabled()
        gc.disable()
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            if collecting:
                gc.enable()
        if self._errors:
            raise self._errors[0]
        in_order = sorted(call for calls in self._done for call in calls)
        return np.array([latency for _, latency in in_order], np.float64) / (1e6 * len(self._streams))

    def _stream(self, number: int) -> None:
        try:
            with self._streams[number]() as call:
                for _ in range(self._warmup):
                    call()
                self._start.wait()
                self._timed(call, self._done[number])
        except threading.BrokenBarrierError:
            pass  # another stream failed, and says why
        except BaseException as error:
            self._errors.append(error)
            self._over.set()
            self._start.abort()

    def _timed(self, call: Call, done: list[tuple[int, int]]) -> None:
        mine = False
        begin = perf_counter_ns()
        while not self._over.is_set():
            before = perf_counter_ns()
            call()
            after = perf_counter_ns()
            if mine:
                continue
            done.append((after, after - before))
            if len(done) >= self._most or (len(done) >= self._least and after - begin >= self._limit):
                mine = True
                with self._mutex:
                    self._unfinished -= 1
                    if not self._unfinished:
                        self._over.set()
