"""A portfolio: several strategies share one history, and the next proposal goes to the one that gained lately.

Every member sees all rows, whoever proposed them. Who proposes is decided by the AUC bandit: a member's credit is the
area under the curve of its hits in a sliding window, a hit being a value that beats every earlier one by more
than the noise; recent hits count more. To it comes the usual bonus for members that were rarely asked.

A resumed study must know who proposed which row, and nothing is stored. So trials come in blocks of `block`, and the
members of a block are worked out from the results of the blocks before the last one alone: the whole
sequence of decisions follows from the history again, with any number of builders. A block waits (None) for a
straggler of those blocks. Where a member has nothing to propose the next one stands in for it, and the credit stays
where the turn was.

Good at: not knowing which strategy suits. Bad at: it is never quite as good as its best member; few trials.

Source: Ansel et al., "OpenTuner: An Extensible Framework for Program Autotuning", PACT 2014, AUC bandit meta technique,
whose window and constant are the defaults. Credit: Fialho, Schoenauer and Sebag, "Toward Comparison-based Adaptive
Operator Selection", GECCO 2010, whose curve runs over the ranks of the gains, where OpenTuner's and this one run over
time. Sliding window: Fialho, Da Costa, Schoenauer and Sebag, "Analyzing Bandit-based Adaptive Operator Selection
Mechanisms", Annals of Mathematics and Artificial Intelligence 60, 2010. Bonus: UCB1, Auer, Cesa-Bianchi and Fischer,
"Finite-time Analysis of the Multiarmed Bandit Problem", Machine Learning 47, 2002, with the natural logarithm, where
OpenTuner has that to base 2.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from gpt_search import History, InputError, Outcome, Proposal, SearchSpace, Strategy, Streams, load_strategy, recommend


class Bandit:
    """Asks the member strategy that gained lately.

    members: names joined by +. window: trials that count. bonus: weight of the bonus for rarely asked members.
    block: trials whose members are decided at once.
    """

    def __init__(
        self, members: str = "live+sparse_linear", window: int = 500, bonus: float = 0.05, block: int = 10
    ) -> None:
        """Raises InputError for an unknown member, fewer than two, window < 1, bonus < 0 or block < 1."""
        names = [name.strip() for name in members.split("+")]
        if len(names) < 2 or len(set(names)) < len(names) or any(n.partition(":")[0] == "bandit" for n in names):
            raise InputError(f"members is {members!r}; it must be two or more different strategies, as in live+mixed")
        if window < 1 or block < 1:
            raise InputError(f"window is {window} and block is {block}; both must be at least 1")
        if not 0 <= bonus < math.inf:
            raise InputError(f"bonus is {bonus}; it must be at least 0 and finite")
        self.members, self.window, self.bonus, self.block = members, window, bonus, block
        self._members: list[Strategy] = [load_strategy(name) for name in names]
        self.exhaustive = any(getattr(m, "exhaustive", False) for m in self._members)
        self.repeats = any(getattr(m, "repeats", False) for m in self._members)

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """What the member whose turn it is proposes; None while its block waits, or when no member has anything."""
        trial = history.next_trial
        known = self._known(trial)
        if any(number <= known for number in history.pending_trials):
            return None
        for member in self.turns(history, trial):
            # A stream of its own: two members must not draw the same numbers.
            own = Streams(f"{streams.seed!r}:bandit:{member}")
            proposal = self._members[member].propose(space, history, own)
            if proposal is not None:
                return proposal
        return None

    def recommend(self, history: History, k: int = 1) -> list[int]:
        """What the first member that has a rule of its own recommends, else the rule of all strategies."""
        for member in self._members:
            own = getattr(member, "recommend", None)
            if own is not None:
                return list(own(history, k))
        return recommend(history, k)

    def _known(self, trial: int) -> int:
        """The last trial whose result may decide about `trial`: that of the block before the last."""
        return ((trial - 1) // self.block - 1) * self.block

    def turns(self, history: History, trial: int) -> list[int]:
        """The members by preference for a trial from 1 on; the history holds the results up to `_known(trial)`."""
        hits = self._hits(history)
        count = len(self._members)
        window: deque[tuple[int, int]] = deque(maxlen=self.window)  # (member, trial), oldest first
        order, area = list(range(count)), [0.0] * count
        for number in range(1, trial + 1):
            if (number - 1) % self.block == 0:
                area = self._areas(window, hits, self._known(number))
                asked = [0] * count
                for member, _ in window:
                    asked[member] += 1
            spread = math.sqrt(2.0 * math.log(max(sum(asked), 1)))
            # Never asked comes first; else AUC + C sqrt(2 ln |H| / H_t), with H the window, H_t of it the member's.
            score = [
                area[m] + self.bonus * spread / math.sqrt(asked[m]) if asked[m] else math.inf for m in range(count)
            ]
            order = sorted(range(count), key=lambda m: (-score[m], asked[m], m))
            window.append((order[0], number))
            asked[order[0]] += 1
        return order

    def _areas(self, window: deque[tuple[int, int]], hits: set[int], known: int) -> list[float]:
        """Area under each member's curve of hits, 1 where every one hit: trial i of its n weighs 2 i / (n (n + 1))."""
        total, places = [0.0] * len(self._members), [0] * len(self._members)
        for member, number in window:
            if number <= known:
                places[member] += 1
                total[member] += places[member] * (number in hits)
        return [2.0 * t / (n * (n + 1)) if n else 0.0 for t, n in zip(total, places, strict=True)]

    def _hits(self, history: History) -> set[int]:
        """Trials with a value that was a gain on all trials before, in the order of their numbers."""
        order = np.argsort(history.trial, kind="stable")
        fine = (history.outcome == Outcome.OK)[order]
        value = np.where(fine, history.value[order], np.nan)
        value = np.where(np.isnan(value), np.inf, value)
        best = np.minimum.accumulate(value)
        gained = np.append(False, value[1:] < best[:-1] * (1.0 - (history.noise or 0.0)))
        return set(history.trial[order][gained].tolist())
