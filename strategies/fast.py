"""One change at a time: the reference, then every single change to it, in trtexec's order.

Order: index 0 is the reference (which every study has measured as trial 0), then one change at a
time, knobs from last to first, values in the order in which they were listed, the default skipped.
With other `knobs` they are walked from first to last, or in an order drawn once per study, so that a
budget below the number of changes does not always leave out the same ones.

Good at: a first look at every knob for the price of one trial per value. Bad at: gains that need
two changes at once; with noise and many knobs the fastest single change is often just the luckiest.

Source: trtexec's tuner, searching algorithm `fast` (TensorRT 11.1, Global Performance Tuner); the order is that of
`identifyVariedKnob` in its samples/common/sampleTuning.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gpt_search import History, InputError, Proposal, SearchSpace, Streams

Knobs = Literal["last_first", "first_first", "shuffled"]


class Fast:
    """Every single change to the reference, knobs from last to first (trtexec's `fast`).

    knobs: the order of the knobs; "last_first" is trtexec's.
    """

    def __init__(self, knobs: Knobs = "last_first") -> None:
        """Raises InputError for other `knobs`."""
        if knobs not in get_args(Knobs):
            raise InputError(f"knobs is {knobs!r}; allowed are {', '.join(get_args(Knobs))}")
        self.knobs = knobs
        # A cache: how far the order was walked for one history. All routes before `_next` are in it.
        self._history: History | None = None
        self._ahead: Iterator[NDArray[np.int16]] = iter(())
        self._next: NDArray[np.int16] | None = None

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """The first route in order that was not tried; None after the last."""
        if history is not self._history:
            self._history, self._ahead = history, self.routes(space, streams)
            self._next = next(self._ahead, None)
        while self._next is not None and history.contains(self._next):
            self._next = next(self._ahead, None)
        return None if self._next is None else Proposal(self._next)

    def routes(self, space: SearchSpace, streams: Streams | None = None) -> Iterator[NDArray[np.int16]]:
        """Code vectors, int16 (d,), lazily and by default in trtexec's exact order, the reference first.

        streams: needed for shuffled knobs.
        """
        yield space.default.copy()
        default, listed = space.default.tolist(), space.listed.tolist()
        for knob in self._order(len(space), streams):
            for code in range(listed[knob]):
                if code != default[knob]:
                    codes = space.default.copy()
                    codes[knob] = code
                    yield codes

    def _order(self, knobs: int, streams: Streams | None) -> list[int]:
        if self.knobs == "shuffled":
            if streams is None:
                raise ValueError("shuffled knobs need streams of random numbers")
            return [int(k) for k in streams.trial(0, "knobs").permutation(knobs)]  # one order for the whole study
        return list(range(knobs)) if self.knobs == "first_first" else list(reversed(range(knobs)))

    def count(self, space: SearchSpace) -> int:
        """The number of routes as trtexec counts it: 1 + the listed values that are not the default."""
        return 1 + sum(
            listed - (default < listed)  # under strict trtexec grammar the default may not be listed
            for listed, default in zip(map(int, space.listed), map(int, space.default), strict=True)
        )
