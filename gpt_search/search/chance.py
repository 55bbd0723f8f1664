"""What chance alone finds: the best of routes drawn without replacement from a full table."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gpt_search.domain.errors import InputError

QUANTILES = (0.25, 0.5, 0.75)


def best_of_draws(log_ratios: ArrayLike, draws: ArrayLike, start: float = 0.0) -> NDArray[np.float64]:
    """The exact distribution of the best of k routes: float64 (len(draws), 4), its mean and `QUANTILES`.

    log_ratios: (N,), true log(latency / reference) of every route that may be drawn (not the reference, which is known
    from the start); NaN where infeasible: drawing it costs a draw and finds nothing. draws: numbers k, 0 <= k <= N.
    start: what is known before the first draw, log-ratio 0 of the reference. A quantile is the smallest value with at
    least that probability.

    Sorted ascending, v(1) <= ... <= v(N), the best is beyond v(i) when all k draws are among the other N - i:
    P(best > v(i)) = C(N-i, k) / C(N, k), hence E = v(1) + sum over i of (v(i+1) - v(i)) P(best > v(i)).
    Source: hypergeometric order statistics, e.g. H. A. David and H. N. Nagaraja, Order Statistics (3rd ed., 2003),
    section 3.7. Raises InputError for an empty table or a k outside.
    """
    from scipy.special import gammaln  # slow to import; only a full table needs it

    values = np.asarray(log_ratios, np.float64).ravel()
    ks = np.asarray(draws, np.int64).ravel()
    total = values.size
    if not total or (ks < 0).any() or (ks > total).any():
        raise InputError(
            f"draws without replacement from {total} routes: allowed are 0 to {total}, of at least 1 route"
        )
    ordered = np.sort(np.fmin(np.where(np.isnan(values), np.inf, values), start))
    ordered = np.append(ordered, start)  # position N: nothing drawn beats the start
    steps = np.diff(ordered)
    i = np.arange(1, total + 1)
    out = np.empty((len(ks), 1 + len(QUANTILES)))
    for at in range(0, len(ks), 512):
        k = ks[at : at + 512, None]
        rest = total - i
        possible = rest >= k
        # log C(N-i, k) - log C(N, k); where impossible the arguments are clipped and the result dropped.
        left = np.where(possible, rest - k, 0)
        log_p = gammaln(rest + 1) - gammaln(left + 1) - gammaln(total + 1) + gammaln(total - k + 1)
        beyond = np.where(possible, np.exp(np.minimum(log_p, 0.0)), 0.0)
        out[at : at + 512, 0] = ordered[0] + beyond @ steps
        for column, q in enumerate(QUANTILES, start=1):
            reached = np.concatenate([1 - beyond, np.ones((len(k), 1))], axis=1) >= q - 1e-12
            out[at : at + 512, column] = ordered[reached.argmax(axis=1)]
    return out
