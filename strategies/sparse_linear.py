"""Sparse Bayesian regression: many changes at once, the few that matter told apart, Thompson sampling.

The logarithm of the latency is modelled as a sum of effects of single values and of pairs of values,
nearly all of them zero (a spike and a slab). One draw from the posterior is optimised, and the
optimum is the next route: effects that the draw says are gains are on, losses are off, and values
whose effect it puts at exactly zero are on or off by a coin. So the first routes are a random
half of everything that is safe, which tells the effect of every value with half of all trials each, and
the routes drift towards the optimum as the effects become known. Every fourth trial takes the
optimum of the posterior mean instead, with everything that does not matter at its default.

Which values are safe is learnt on the way by adaptive group testing (`FailureCauses`): routes also carry
a group of values that were in no working route yet, the largest group that works with the chance
`works`. Where such a group fails, the suspects are split over the next ones.

Pairs are looked at only among the `active` values that matter most by themselves (heredity: Chipman,
"Bayesian variable selection with related predictors", Canadian Journal of Statistics 24, 1996); 195
knobs have 19,000 pairs. Every row counts by its standard error.

Good at: hundreds of knobs of which few matter, noise as large as the effects, interactions of pairs.
Bad at: effects of three and more knobs together; gains that no single change shows.

Source: Baptista and Poloczek, "Bayesian Optimization of Combinatorial Structures" (BOCS), ICML 2018,
section 3: the pairwise model, Thompson sampling and the optimisation of the draw; in place of
their horseshoe (Carvalho, Polson and Scott, Biometrika 97, 2010) the spike and slab, whose zeros are
exact: Mitchell and Beauchamp, "Bayesian Variable Selection in Linear Regression", JASA 83, 1988, with a
normal slab for their uniform one, sampled as in Geweke, "Variable selection and model comparison in
regression", Bayesian Statistics 5, 1996. Group testing: see `FailureCauses`.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt_search import (
    FailureCauses,
    History,
    InputError,
    Outcome,
    Proposal,
    SearchSpace,
    Streams,
    uniform_untried,
    untried_routes,
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_DRAWS = 12  # routes looked at before one is taken at random
_SLAB = 0.03  # what an effect is like, before anything is seen: 3 %
_NOISE = 0.01  # the standard deviation of a value, where none is known: 1 %
_SHARES = ((1.0, 9.0), (1.0, 99.0))  # Beta prior of the share of values, and of pairs, that matter
_PAIR_RISK = 0.25  # a route may fail by its pairs with about this chance
_FEW = 2.0  # a group that clears fewer values than this on average is tried only every other trial
_NOTHING = 0.3  # and one that clears fewer than this, never


class _Posterior(NamedTuple):
    """Effects in log-latency: m of single values, then one of each pair (rows of `pairs`, int (p, 2), values).

    draw: one sample (m + p,). mean: their mean. matters: chance that the effect is not zero.
    """

    pairs: NDArray[np.intp]
    draw: Floats
    mean: Floats
    matters: Floats


class SparseLinear:
    """Spike-and-slab regression on values and pairs, Thompson sampling, and group testing of what may fail.

    works: chance that a group of untried values is meant to work with. active: values whose pairs are
    looked at. sweeps: of the sampler, per model. greedy: every so many trials the optimum of the mean.
    """

    exhaustive: ClassVar[bool] = True

    def __init__(self, works: float = 0.55, active: int = 16, sweeps: int = 40, greedy: int = 4) -> None:
        """Raises InputError unless 0 < works < 1, active >= 0, sweeps >= 2 and greedy >= 1."""
        if not 0 < works < 1:
            raise InputError(f"works is {works}; the chance that a group works must be above 0 and below 1")
        if active < 0:
            raise InputError(f"active is {active}; the number of values whose pairs are looked at must be 0 or more")
        if sweeps < 2:
            raise InputError(f"sweeps is {sweeps}; the sampler needs at least 2")
        if greedy < 1:
            raise InputError(f"greedy is {greedy}; the optimum of the mean is tried every 1 or more trials")
        self.works, self.active, self.sweeps, self.greedy = works, active, sweeps, greedy

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """The optimum of a draw, or of the mean, with a group of untried values; None when every route was tried."""
        if not untried_routes(space, history):
            return None
        trial = history.next_trial
        causes = FailureCauses(space, history)
        posterior = self._posterior(causes, history, streams.trial(trial, "posterior"))
        rng = streams.trial(trial)
        for attempt in range(_DRAWS):
            if attempt == 0 and trial % self.greedy == 0:
                chosen = self._best_of_mean(causes, posterior)
            else:
                least = _FEW if trial % 2 == 0 and attempt < _DRAWS // 2 else _NOTHING
                chosen = self._best_of_draw(causes, posterior, history, least, rng)
            codes = causes.codes_of(chosen)
            if not history.contains(codes):
                return Proposal(codes)
        return Proposal(uniform_untried(space, history, rng))

    def recommend(self, history: History, k: int = 1) -> list[int]:
        """Rows of the k routes that never failed with the smallest posterior mean, best first."""
        bad = np.bincount(history.route, history.outcome != Outcome.OK, history.n_routes) > 0
        rows = np.flatnonzero(history.feasible & ~bad[history.route])
        rows = rows[np.unique(history.route[rows], return_index=True)[1]]
        if not len(rows):
            return []
        causes = FailureCauses(history.space, history)
        posterior = self._posterior(causes, history, Streams("recommend").trial(len(history)))
        expected = _design(causes.indicators(history.codes[rows]), posterior.pairs) @ posterior.mean
        return [int(row) for row in rows[np.lexsort((rows, np.round(expected, 9)))[:k]]]

    # -- the model ------------------------------------------------------------------------------
    def _posterior(self, causes: FailureCauses, history: History, rng: np.random.Generator) -> _Posterior:
        """Single values first; then pairs of those that matter, from where the first chain ended."""
        rows = np.flatnonzero(history.feasible)
        held = causes.indicators(history.codes[rows])
        value, error = history.value[rows], history.error[rows]
        noise = _NOISE if history.noise is None else history.noise
        error = np.maximum(np.where(np.isnan(error), noise * value, error) / value, 1e-4)
        sure = history.noise is not None or not np.isnan(history.error[rows]).any()
        # A value that was taken over from an equal engine is no second measurement.
        _, copy, copies = np.unique(
            np.stack([history.fingerprint[rows], value]), axis=1, return_inverse=True, return_counts=True
        )
        weight = error**-2.0 / np.where(history.fingerprint[rows] >= 0, copies[copy], 1)
        y = np.log(value)
        data = _Data(y - weight @ y / weight.sum(), weight, 5.0 if sure else 1.0)
        m = held.shape[1]
        pairs = np.empty((0, 2), np.intp)
        single = _design(held, pairs)
        gram, moment = _moments(data, single, single)
        draw, mean, matters = _gibbs(data, gram, moment, m, np.zeros(m), self.sweeps, rng)
        top = np.sort(np.argsort(-matters, kind="stable")[: self.active])
        top = top[matters[top] > 0.05]
        first, second = (top[i] for i in np.triu_indices(len(top), 1))
        both = (held[:, first] & held[:, second]).sum(0)
        # A pair tells itself from its values only where all three were seen.
        apart = np.minimum(held[:, first].sum(0), held[:, second].sum(0)) - both
        told = (causes.knob[first] != causes.knob[second]) & (both >= 2) & (apart >= 1)
        if told.any():
            pairs = np.stack([first[told], second[told]], axis=1)
            start = np.append(draw, np.zeros(len(pairs)))
            # The block of the single values is there already: most of the work, with many rows.
            design = _design(held, pairs)
            below, moment_of_pairs = _moments(data, design[:, m:], design)
            gram = np.block([[gram, below[:, :m].T], [below]])
            moment = np.append(moment, moment_of_pairs)
            draw, mean, matters = _gibbs(data, gram, moment, m, start, self.sweeps, rng)
        return _Posterior(pairs, draw, mean, matters)

    # -- routes ---------------------------------------------------------------------------------
    def _best_of_mean(self, causes: FailureCauses, posterior: _Posterior) -> Bools:
        """The best safe values by the mean, those that hardly matter left at their default."""
        m = len(causes.knob)
        usable = (causes.alone < 0.01) & (posterior.matters[:m] > 0.1)
        chosen = _optimum(causes.knob, posterior.pairs, posterior.mean, usable, np.zeros(m, bool))
        return causes.without_risky_pairs(chosen, _worth(posterior.mean[:m]), _PAIR_RISK)

    def _best_of_draw(
        self, causes: FailureCauses, posterior: _Posterior, history: History, least: float, rng: np.random.Generator
    ) -> Bools:
        """The best safe values by the draw, and a group of others when it clears at least `least` on average."""
        m = len(causes.knob)
        order = rng.random(m)
        fixed = np.zeros(m, bool)
        waiting = np.any(causes.indicators(history.pending), axis=0)  # a pending trial is about to tell
        fixed[causes.group(self.works, order, waiting, least)] = True
        taken = np.isin(causes.knob, causes.knob[fixed])
        effects = posterior.draw.copy()
        # An effect of exactly zero: a coin decides.
        zero = effects[:m] == 0
        effects[:m][zero] = np.where(rng.random(int(zero.sum())) < 0.5, -1e-12, 1e-12)
        chosen = _optimum(causes.knob, posterior.pairs, effects, (causes.alone < 0.01) & ~taken, fixed)
        worth = _worth(effects[:m])
        worth[fixed] = _SLAB
        return causes.without_risky_pairs(chosen, worth, _PAIR_RISK)


def _worth(effects: Floats) -> Floats:
    """What is lost by leaving a value out: its gain, and a little for what it may teach."""
    return np.maximum(-effects, 0.0) + 0.02 * _SLAB


def _optimum(knob: NDArray[np.intp], pairs: NDArray[np.intp], effects: Floats, usable: Bools, fixed: Bools) -> Bools:
    """The usable values (bool (m,)) with the smallest sum of effects, at most one of a knob, by coordinate descent.

    fixed: values that are on in any case. BOCS relaxes this problem to a semidefinite one, or anneals; with few
    pairs that matter, descent over the knobs in pairs from the optimum without them does.
    """
    m = len(knob)
    alone = effects[:m]
    chosen = fixed.copy()
    gains = np.flatnonzero(usable & (alone < 0))
    gains = gains[np.lexsort((alone[gains], knob[gains]))]
    chosen[gains[np.unique(knob[gains], return_index=True)[1]]] = True
    table = np.zeros((m, m))
    table[pairs[:, 0], pairs[:, 1]] = table[pairs[:, 1], pairs[:, 0]] = effects[m:]
    moving = np.unique(knob[usable & table.any(0)])
    for _ in range(6):
        changed = False
        for k in moving.tolist():
            here = np.flatnonzero((knob == k) & usable)
            before = chosen[here].copy()
            chosen[here] = False
            sums = alone[here] + table[here] @ chosen
            best = int(np.argmin(sums))
            chosen[here[best]] = sums[best] < 0
            changed |= bool((chosen[here] != before).any())
        if not changed:
            break
    return chosen


def _design(held: Bools, pairs: NDArray[np.intp]) -> Floats:
    """Values, then pairs, as columns of 0 and 1: float64 (n, m + p)."""
    return np.hstack([held, held[:, pairs[:, 0]] & held[:, pairs[:, 1]]]).astype(np.float64)


class _Data(NamedTuple):
    """y: float64 (n,). weight: 1 / error^2, (n,). sure: how firmly the errors are believed, in half observations."""

    y: Floats
    weight: Floats
    sure: float


def _moments(data: _Data, left: Floats, right: Floats) -> tuple[Floats, Floats]:
    """left' W right and left' W y, all about their weighted means: float64 (a, b) and (a,)."""
    weighted = left.T * data.weight
    sums = weighted.sum(1)
    total = data.weight.sum()
    gram = weighted @ right - sums[:, None] * (data.weight @ right) / total
    return gram, weighted @ data.y - sums * (data.weight @ data.y) / total


def _gibbs(
    data: _Data, gram: Floats, moment: Floats, m: int, start: Floats, sweeps: int, rng: np.random.Generator
) -> tuple[Floats, Floats, Floats]:
    """Spike-and-slab regression by Gibbs sampling: the last state, and mean and inclusion over the second half.

    y = constant + design b + noise / sqrt(weight) * sqrt(s); b_j = 0 with chance 1 - share, else N(0, slab);
    the constant is integrated out; share, slab and s have conjugate priors and are sampled too. The
    first m columns and the others have a share each. One coordinate at a time, b_j and its indicator drawn
    together (Geweke 1996): the odds of the indicator are those of the two marginal likelihoods given all other effects.
    """
    y, weight, sure = data
    n, columns = len(y), len(gram)
    total = weight.sum()
    square = float(weight @ (y - weight @ y / total) ** 2)
    used = np.flatnonzero(gram.diagonal() > 1e-9 * total)  # the others are constant: the data say nothing
    gram, moment = gram[np.ix_(used, used)], moment[used]
    diagonal = gram.diagonal().copy()
    kinds = (used >= m).astype(np.intp)
    sizes = np.bincount(kinds, minlength=2)
    b, rest = start[used].tolist(), moment - gram @ start[used]  # rest: design' W (y - design b)
    share, slab, s = np.asarray([0.1, 0.01]), _SLAB**2, 1.0
    own, rows = diagonal.tolist(), list(gram)
    mean, matters = np.zeros(columns), np.zeros(columns)
    item = rest.item
    for sweep in range(sweeps):
        # With z = rest_j + gram_jj b_j: included when the log-odds log(share / (1 - share)) + log(v / slab) / 2
        # + v z^2 / (2 s^2) exceed those of a uniform number, and then N(v z / s, v).
        v = 1.0 / (diagonal / s + 1.0 / slab)
        uniform = rng.random(len(used))
        odds = np.log(uniform / (1 - uniform)) - np.log(share / (1 - share))[kinds] - 0.5 * np.log(v / slab)
        limit = (2 * s * s * odds / v).tolist()
        scale, jitter = (v / s).tolist(), (np.sqrt(v) * rng.standard_normal(len(used))).tolist()
        for j, (old, width, least) in enumerate(zip(b, own, limit, strict=True)):
            z = item(j) + width * old
            if z * z > least:
                new = scale[j] * z + jitter[j]
            elif old:
                new = 0.0
            else:
                continue
            np.subtract(rest, rows[j] * (new - old), out=rest)
            b[j] = new
        state = np.asarray(b)
        on = state != 0
        count = np.bincount(kinds[on], minlength=2)
        for kind, (a, c) in enumerate(_SHARES):
            share[kind] = rng.beta(a + count[kind], c + sizes[kind] - count[kind])
        slab = float((2 * _SLAB**2 + 0.5 * state @ state) / rng.gamma(2 + 0.5 * on.sum()))
        misfit = max(square - float(state @ (moment + rest)), 0.0)
        s = float((sure + 0.5 * misfit) / rng.gamma(sure + 0.5 * n))
        if 2 * sweep >= sweeps:
            mean[used] += state
            matters[used] += on
    last = np.zeros(columns)
    last[used] = b
    kept = sweeps // 2
    return last, mean / kept, matters / kept
