import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from gpt_search.backends.base import TimingRequest, timing_refusal
from gpt_search.backends.onnxruntime_streams import timed_streams


class Load:
    """Streams whose calls sleep, and that count how many of them are at work."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds, self.mutex = seconds, threading.Lock()
        self.at_work, self.seen, self.threads, self.calls = 0, set[int](), set[int](), 0

    def stream(self, number: int):  # type: ignore[no-untyped-def]
        @contextmanager
        def entered() -> Iterator[object]:
            self.threads.add(threading.get_ident())
            yield lambda: self.call(self.seconds[number])

        return entered

    def call(self, seconds: float) -> None:
        with self.mutex:
            self.at_work += 1
            self.calls += 1
            self.seen.add(self.at_work)
        time.sleep(seconds)
        with self.mutex:
            self.at_work -= 1


def run(load: Load, **request: object) -> np.ndarray:
    streams = [load.stream(i) for i in range(len(load.seconds))]
    return timed_streams(streams, TimingRequest({}, streams=len(streams), **request))  # type: ignore[arg-type]


def test_all_streams_are_at_work_at_once_in_threads_of_their_own() -> None:
    load = Load([0.004, 0.004, 0.004])
    samples = run(load, seconds=0.05)
    assert len(load.threads) == 3 and max(load.seen) == 3
    assert samples.dtype == np.float64 and samples.shape[0] >= 3
    assert (samples >= 4 / 3 * 0.99).all()  # a call's latency over the number of streams


def test_a_fast_stream_keeps_the_load_up_until_the_slow_one_has_its_calls() -> None:
    load = Load([0.001, 0.05])
    samples = run(load, seconds=0.0, min_calls=6)
    assert sum(samples >= 25 * 0.99) == 3 == sum(samples < 25 * 0.99)  # three of each
    assert load.calls > 20  # and unmeasured ones of the fast stream beside


def test_bounds_and_warm_up() -> None:
    assert len(run(Load([0.0, 0.0]), seconds=60, max_calls=10)) == 10
    load = Load([0.0, 0.0])
    assert len(run(load, seconds=0.0, max_calls=2, warmup_calls=4)) == 2
    assert load.calls >= 6


def test_what_a_call_raises_ends_all_streams() -> None:
    def bad() -> object:
        raise RuntimeError("no")

    @contextmanager
    def failing() -> Iterator[object]:
        yield bad

    load = Load([0.001])
    with pytest.raises(RuntimeError, match="no"):
        timed_streams([load.stream(0), failing], TimingRequest({}, seconds=60, streams=2))  # type: ignore[list-item]


def test_what_a_backend_cannot_time_is_refused_with_the_option_to_leave_out() -> None:
    assert timing_refusal(("latency", "throughput"), 4, False) is None
    assert timing_refusal(("latency",), 1, False) is None
    assert "--streams 2" in (timing_refusal(("latency",), 2, False) or "")
    assert "--host-copies" in (timing_refusal(("latency", "throughput"), 1, True) or "")
