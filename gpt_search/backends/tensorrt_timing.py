"""Timing with CUDA events: calls one after the other on one stream, or beside each other on several.

Works on streams and callables alone, so it times whatever puts work into the stream it is given.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpt_search.backends.base import TimingRequest
from gpt_search.backends.cuda_runtime import Event, Hold, Stream

Launch = Callable[[], None]
# Calls that are queued at once. Bounded, because a stream takes about a thousand launches before one blocks,
# and a launch that blocks behind a hold would wait for ever.
_BATCH = 32
_BATCH_SECONDS = 0.005
_QUEUED = 2  # calls in one of several streams: one runs, the next waits, so that the stream never runs dry


def time_one_by_one(
    stream: Stream,
    call: Launch,
    request: TimingRequest,
    before: Launch | None,
    look: Callable[[], None],
    *,
    held: bool,
) -> NDArray[np.float64]:
    """Samples in ms, one a call, in call order: the time between events around each.

    before: put into the stream before every call, outside of its events (an L2 flush). look: called
    while the device is busy, once or twice. held: a batch of calls is queued before the device starts on it; a
    call must then not wait for the device. request: seconds, min_calls and max_calls.
    """
    samples: list[float] = []
    with ExitStack() as stack:
        pairs = [(stack.enter_context(Event()), stack.enter_context(Event())) for _ in range(_BATCH)]
        hold = stack.enter_context(Hold()) if held else None
        batch, batches = 1, 0
        began = time.perf_counter()
        while not samples or (
            len(samples) < request.max_calls
            and (len(samples) < request.min_calls or time.perf_counter() - began < request.seconds)
        ):
            count = min(batch, request.max_calls - len(samples))
            used = pairs[:count]
            with hold.on(stream) if hold is not None else nullcontext():
                for start, end in used:
                    if before is not None:
                        before()
                    start.record(stream)
                    call()
                    end.record(stream)
            if batches < 2:  # the first is one call; the second, if there is one, keeps the device busy for longer
                look()
            batches += 1
            used[-1][1].synchronize()
            samples.extend(end.ms_since(start) for start, end in used)
            batch = min(_BATCH, max(1, int(_BATCH_SECONDS * 1000 / max(samples[-1], 1e-3))))
    return np.asarray(samples, np.float64)


@dataclass
class _Track:
    """One stream: the calls in it, in order, as (events around it, whether it is timed); spare events."""

    stream: Stream
    call: Launch
    stack: ExitStack
    queued: deque[tuple[tuple[Event, Event], bool]] = field(default_factory=deque)
    spare: list[tuple[Event, Event]] = field(default_factory=list)

    def add(self, timed: bool) -> None:
        pair = self.spare.pop() if self.spare else (self._event(), self._event())
        pair[0].record(self.stream)
        self.call()
        pair[1].record(self.stream)
        self.queued.append((pair, timed))

    def _event(self) -> Event:
        return self.stack.enter_context(Event())


def time_concurrently(
    streams: Sequence[Stream],
    calls: Sequence[Launch],
    request: TimingRequest,
    look: Callable[[], None],
) -> NDArray[np.float64]:
    """Samples in ms, in the order of completion: each call's latency over the number of streams.

    calls: what makes one call on each stream. All streams are kept busy from an untimed first call until the
    last timed call has ended, so that every timed call runs under the full load. Other arguments: as above.
    """
    done: list[tuple[float, float]] = []  # (end, latency), ms
    with ExitStack() as stack:
        zero = stack.enter_context(Event())
        tracks = [_Track(s, call, stack) for s, call in zip(streams, calls, strict=True)]
        zero.record(streams[0])
        for track in tracks:
            track.stream.wait_for(zero)
            track.add(timed=False)
        started = 0
        looked = False
        began = time.perf_counter()

        def wanted() -> bool:
            if started >= request.max_calls:
                return False
            return started < max(1, request.min_calls) or time.perf_counter() - began < request.seconds

        while wanted() or any(timed for track in tracks for _, timed in track.queued):
            for track in tracks:
                while track.queued and track.queued[0][0][1].done():
                    (start, end), timed = track.queued.popleft()
                    if timed:
                        done.append((end.ms_since(zero), end.ms_since(start)))
                    track.spare.append((start, end))
                while len(track.queued) < _QUEUED:
                    timed = wanted()
                    started += timed
                    track.add(timed)
            if not looked:
                looked = True
                look()
        for track in tracks:
            track.stream.synchronize()
    done.sort()
    return np.asarray([latency for _, latency in done], np.float64) / len(streams)
