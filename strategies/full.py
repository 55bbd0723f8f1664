"""Full enumeration: every combination of the listed values, in trtexec's order.

The order is mixed-radix with the last knob fastest. It is walked lazily, so a space of 2^200
routes costs nothing to start on; only the routes that a budget allows are ever made.

`fastest=first` walks with the first knob fastest instead: the knobs that a short budget varies are
those that the expression lists first.

trtexec meets the reference route at its place in this order. Here every study has measured it as
trial 0, so it is skipped when its turn comes: every other route keeps its place.

Good at: small spaces, where it proves what the best route is. Bad at: everything else; a budget
that covers a small part of the space only ever changes the last few knobs (or the first few).

Source: trtexec's tuner, searching algorithm `full` (TensorRT 11.1, Global Performance Tuner); the order is that of
`TuningContext::getPathAtIndex` in its samples/common/sampleTuning.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from gpt_search import History, InputError, Proposal, SearchSpace, Streams

Fastest = Literal["last", "first"]


class Full:
    """Every combination of the listed values, the last knob fastest (trtexec's `full`).

    fastest: which end of the list of knobs changes from one route to the next; "last" is trtexec's order.
    """

    exhaustive: ClassVar[bool] = True

    def __init__(self, fastest: Fastest = "last") -> None:
        """Raises InputError for another `fastest`."""
        if fastest not in get_args(Fastest):
            raise InputError(f"fastest is {fastest!r}; allowed are {' and '.join(get_args(Fastest))}")
        self.fastest = fastest
        # A cache: how far the order was walked for one history. All routes before `_next` are in it.
        self._history: History | None = None
        self._ahead: Iterator[NDArray[np.int16]] = iter(())
        self._next: NDArray[np.int16] | None = None

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """The first route in order that was not tried; None after the last. `streams` is not used."""
        if history is not self._history:
            self._history, self._ahead = history, self.routes(space)
            self._next = next(self._ahead, None)
        while self._next is not None and history.contains(self._next):
            self._next = next(self._ahead, None)
        return None if self._next is None else Proposal(self._next)

    def routes(self, space: SearchSpace) -> Iterator[NDArray[np.int16]]:
        """Code vectors, int16 (d,), lazily, by default in trtexec's exact order, the reference at its place."""
        step = 1 if self.fastest == "last" else -1
        for codes in product(*map(range, space.listed.tolist()[::step])):
            yield np.array(codes[::step], np.int16)

    def count(self, space: SearchSpace) -> int:
        """The number of routes as trtexec counts it: the product of the numbers of listed values."""
        return prod(space.listed.tolist())
