"""Routes that a study has not tried yet."""

from __future__ import annotations

import numpy as np

from gpt_search.domain.history import History
from gpt_search.domain.space import Codes, SearchSpace

_INT64 = 2**62
_ALL_TRIED = "every route of the space was tried"


def tried(history: History) -> int:
    """Number of distinct routes that were tried: finished or pending."""
    if not history.n_pending:
        return history.n_routes
    return history.n_routes + len({c.tobytes() for c in history.pending if not history.rows_of(c)})


def untried_routes(space: SearchSpace, history: History) -> int:
    """Number of routes of the space that are neither tried nor pending; a Python int of any size."""
    return space.size - tried(history)


def nearest_untried(space: SearchSpace, history: History, near: Codes, rng: np.random.Generator) -> Codes:
    """A route that was not tried: a random single change of `near`, else uniform over all untried routes.

    Raises ValueError when every route was tried.
    """
    around = space.neighbours(near)
    for i in rng.permutation(len(around)):
        if not history.contains(around[i]):
            codes: Codes = around[i]
            return codes
    return uniform_untried(space, history, rng)


def uniform_untried(space: SearchSpace, history: History, rng: np.random.Generator) -> Codes:
    """A route drawn uniformly from those that were not tried, in a space of any size.

    Raises ValueError when every route was tried.
    """
    if space.size <= _INT64:
        radix = np.append(np.cumprod(space.cardinalities[:0:-1], dtype=np.int64)[::-1], 1)[: len(space)]
        taken = np.unique(np.concatenate([history.codes, history.pending]) @ radix)
        left = space.size - len(taken)
        if not left:
            raise ValueError(_ALL_TRIED)
        rank = int(rng.integers(left))
        # taken[i] - i untried routes lie before taken[i]; the rank is passed by those with no more than that.
        return space.codes_at(rank + int(np.searchsorted(taken - np.arange(len(taken)), rank, side="right")))
    numbers = sorted({space.index_of(c) for c in (*history.codes, *history.pending)})
    left = space.size - len(numbers)
    if not left:
        raise ValueError(_ALL_TRIED)
    # 64 bits more than needed: the bias of the remainder is below 2^-64.
    index = int.from_bytes(rng.bytes(left.bit_length() // 8 + 9), "little") % left
    for below in numbers:
        if below > index:
            break
        index += 1
    return space.codes_at(index)
