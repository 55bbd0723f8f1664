"""A strategy that searches some routes of a space alone: what it proposes outside becomes the nearest one inside.

That is the repair of constrained evolutionary search: Coello Coello, "Theoretical and numerical constraint-handling
techniques used with evolutionary algorithms", Comput. Methods Appl. Mech. Engrg. 191 (2002) 1245-1287. The history
holds the routes that were evaluated, so the strategy learns from those and is not told of failures that are none.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.history import History
from gpt_search.domain.space import Codes, SearchSpace
from gpt_search.domain.streams import Streams
from gpt_search.search.loop import checked_codes
from gpt_search.search.strategy import Proposal, Strategy, blamed, recommended_rows


class Restricted:
    """Confines a strategy to these routes.

    A proposal that is none of them becomes the untried one that differs in the fewest knobs, ties being drawn; there
    is nothing left to propose when all were tried. projected: how many proposals were replaced.
    """

    def __init__(self, strategy: Strategy, routes: Codes) -> None:
        """routes: int16 (n, d)."""
        self.inner = strategy
        self.projected = 0
        self._routes = routes
        self._row = {codes.tobytes(): row for row, codes in enumerate(routes)}
        self._history: History | None = None
        self._open: NDArray[np.bool_] = np.ones(len(routes), bool)
        self._read = 0

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """As the strategy itself, or the nearest route that may be tried."""
        with blamed(self.inner, "propose"):
            proposal = self.inner.propose(space, history, streams)
        if proposal is None:
            return None
        # Here already, so that an error names the strategy and not what confines it.
        proposal = Proposal(checked_codes(proposal, space, history, self.inner), proposal.until)
        if proposal.codes.tobytes() in self._row:
            return proposal
        open_rows = np.flatnonzero(self._untried(history))
        if not open_rows.size:
            return None
        distance = (self._routes[open_rows] != proposal.codes).sum(1)
        nearest = open_rows[distance == distance.min()]
        rng = streams.trial(history.next_trial, "restrict")
        self.projected += 1
        return Proposal(self._routes[nearest[int(rng.integers(len(nearest)))]], proposal.until)

    def recommend(self, history: History, k: int = 1) -> list[int]:
        """What the strategy itself recommends."""
        return recommended_rows(self.inner, history, k)

    def _untried(self, history: History) -> NDArray[np.bool_]:
        if history is not self._history or len(history) < self._read:
            self._history, self._read = history, 0
            self._open = np.ones(len(self._routes), bool)
        for codes in history.codes[self._read :]:
            self._open[self._row.get(codes.tobytes(), slice(0, 0))] = False
        self._read = len(history)
        found = self._open.copy()
        for codes in history.pending:
            found[self._row.get(codes.tobytes(), slice(0, 0))] = False
        return found
