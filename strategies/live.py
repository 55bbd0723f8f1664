"""Learns from whole groups of changes what each change does: nothing, a failure, or how much faster or slower.

Every proposal changes a group of knobs at once, and every part of its result is used, change by change:

- **Engines.** Two routes with one fingerprint are one engine: what differs between them is inert, at least there.
  Inert changes are no longer suspects of a failure nor of an effect, and engines, not routes, are what the
  effects are fitted to. A change that was seen to matter and is inert elsewhere has a parent there: the pair becomes
  a term of the model.
- **Failures.** A noisy-or over the changes of each failed route: routes that worked clear their changes, and what is
  left shares the blame. What single changes do not explain is blamed on pairs that never worked together.
- **Effects.** Sparse Bayesian regression of the log-latency on the changes and on a few pairs.

A proposal is a Thompson sample: effects drawn from their posterior, and the group with the largest expected gain,
(sum of the drawn gains) x P(it does not fail). Early on that is a random group as large as failures allow; later it is
the best route known plus a few doubtful changes. Every `exploit`-th proposal takes the posterior means instead.

Fingerprints may be wrong in both ways. Equal ones count as strong evidence, never as proof, so that no change is
given up for ever. Where every fingerprint is new the reference is rebuilt once: if its own differs, fingerprints say
nothing here, and from then on timing alone counts.

`probe=first`: groups are built and not timed (`Phase.BUILD`) until it is known which changes make another engine:
a group that changes no fingerprint is inert as a whole, another is halved. Then groups of those go to the gate
(`Phase.GATE`), until it is known which run and pass. Only then is anything timed, and only such changes; with as few
timings as there are of them their effects have a joint Gaussian posterior, in which Thompson samples are drawn. With
four inert knobs in five that is about 155 builds without a timing, and then a third of the timings. `probe=never`
times every group: with builds as dear as timings a timed group teaches more. `probe=auto` decides by the costs so
far: it probes first where gate and timing cost more than `DEAR` times what start and build do.

Good at: hundreds of knobs of which few matter, failures with single causes, noise. Bad at: gains that only appear when
three or more knobs change together; a proposal costs milliseconds.

Source: this project. Parts: Thompson sampling of a sparse model over binary choices is BOCS (Baptista and Poloczek,
"Bayesian Optimization of Combinatorial Structures", ICML 2018); the regression is the variational approximation of
Carbonetto and Stephens, "Scalable Variational Inference for Bayesian Variable Selection in Regression", Bayesian
Analysis 7, 2012, eqs. 8-10; group tests, Dorfman, "The Detection of Defective Members of Large Populations", Ann. Math.
Statist. 14, 1943, by halving, Hwang, "A Method for Detecting All Defective Members in a Population by Group Testing",
JASA 67, 1972; noisy-or, Pearl, "Probabilistic Reasoning in Intelligent Systems", 1988, section 4.3.2, by belief
propagation on a graph with loops, Murphy, Weiss and Jordan, UAI 1999.
"""

from __future__ import annotations

import weakref
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt_search import (
    FailureCauses,
    History,
    InputError,
    Outcome,
    Phase,
    Proposal,
    SearchSpace,
    Streams,
    uniform_untried,
)
from gpt_search import untried_routes as untried

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.intp]

LIVE = 0.6
"""Prior chance that a change alters the engine."""
MERGED = 0.02
"""Chance of equal fingerprints although a change of theirs matters there."""
FLOOR = 0.03
"""The least chance of being live that equal fingerprints leave to a change: it may be tested again."""
BUILDING = 0.6
"""Share of the causes of failure that show in the build; the others show at the gate."""
WORKED = 0.03
"""Chance that a route works although one of its changes is a cause of failure (in another context it is)."""
LEAK = 0.01
"""Chance that a route fails for no cause of its own."""
MISFIT = 0.006
"""Standard deviation of what the model of log-latency leaves out, added to the noise."""
SUSPICIOUS = 20
"""So many engines, all distinct, before the reference is rebuilt."""
DEAR = 3.0
"""`probe=auto`: probing first pays where the gate and a timing cost so many times what start and build do."""
WIDE = 0.06
"""Prior standard deviation of the effect of a change that is known to make another engine."""
DENSE = 3.0
"""So many timings per such change before pairs of them are looked for."""
GUILTY = 0.5
"""A change that fails with this chance is not probed any more."""


class Live:
    """Thompson sampling over groups of changes, with engines told apart by their fingerprints.

    active, failing: prior share of the changes that have an effect on the latency, that fail. slab: prior
    standard deviation of an effect, log-ratio. exploit: every so many proposals one is the best guess.
    probe: build-only group tests before anything is timed: first, never, or auto, by what builds and timings cost.
    """

    exhaustive: ClassVar[bool] = True
    repeats: ClassVar[bool] = True  # the reference is rebuilt once where every fingerprint was new

    def __init__(
        self,
        active: float = 0.12,
        failing: float = 0.1,
        slab: float = 0.04,
        exploit: int = 4,
        probe: Literal["auto", "first", "never"] = "auto",
    ) -> None:
        """Raises InputError unless 0 < active, failing < 1, slab > 0 and exploit >= 1."""
        for name, share in (("active", active), ("failing", failing)):
            if not 0 < share < 1:
                raise InputError(f"{name} is {share}; a share must be above 0 and below 1")
        if not 0 < slab < float("inf"):
            raise InputError(f"slab is {slab}; a standard deviation must be above 0 and finite")
        if exploit < 1:
            raise InputError(f"exploit is {exploit}; it must be at least 1")
        self.active, self.failing, self.slab, self.exploit, self.probe = active, failing, slab, exploit, probe
        self._engines = _Engines(None)

    def propose(self, space: SearchSpace, history: History, streams: Streams) -> Proposal | None:
        """A group of changes; None when every route was tried."""
        knob, code = _changes(space)
        if not knob.size:
            return None
        if not untried(space, history):  # what was only built is left
            left = (history.codes[row] for row in np.flatnonzero(history.until < Phase.TIME).tolist())
            return next((Proposal(codes.copy()) for codes in left if not _settled(history, codes)), None)
        trial = history.next_trial
        rng = streams.trial(trial)
        engines = self._engines_of(history)
        if engines.suspicious(history):
            return Proposal(space.default.copy(), Phase.BUILD)
        x = _features(history, knob, code)
        live = engines.live(len(knob))
        failing = _blame(x, history, np.clip(self.failing * live / LIVE, 1e-4, 0.5))
        if self._probes_first(history):
            probe = engines.next_probe(space, history, failing, rng)
            if probe is not None:
                return probe
        exploit = trial % self.exploit == 0
        safe = engines.probed(x, history, failing) if self._probes_first(history) else None
        model: _Model | _Gaussian
        if safe is not None:
            model = _Gaussian.fit(x, history, safe)
        else:
            model = self._fit(x, history, live, engines.links, None if exploit else rng)
        for attempt in range(6):
            effects = model.means() if exploit and attempt == 0 else model.drawn(rng)
            codes = _route(space, knob, code, _best_group(*effects, model.pairs, failing, knob))
            if not _settled(history, codes):
                return Proposal(codes)
        for _ in range(50):  # the best group and its like were tried: a few changes more or less
            near, flip = codes.copy(), rng.random(len(knob)) < 2.0 / len(knob)
            near[knob[flip]] = np.where(near[knob[flip]] == code[flip], space.default[knob[flip]], code[flip])
            if not _settled(history, near):
                return Proposal(near)
        return Proposal(uniform_untried(space, history, rng))

    def recommend(self, history: History, k: int = 1) -> list[int]:
        """Rows of feasible engines by what the model and their own measurement say together, best first."""
        rows, y, weight = _measured(history)
        if not rows.size:
            return []
        knob, code = _changes(history.space)
        x, engines = _features(history, knob, code), self._engines_of(history)
        live = engines.live(len(knob))
        failing = _blame(x, history, np.clip(self.failing * live / LIVE, 1e-4, 0.5))
        safe = engines.probed(x, history, failing) if self._probes_first(history) else None
        if safe is not None:
            guess = _Gaussian.fit(x, history, safe).predict(x[rows])
        else:
            guess = self._fit(x, history, live, engines.links, None).predict(x[rows])
        own = MISFIT**2 / (MISFIT**2 + _noise(history) ** 2 / weight)
        value = guess + own * (y - guess - np.average(y - guess, weights=weight))
        feasible = history.feasible[rows]
        return [int(rows[i]) for i in np.argsort(np.where(feasible, value, np.inf), kind="stable") if feasible[i]][:k]

    def _probes_first(self, history: History) -> bool:
        """True where groups are built and not timed until it is known which changes make another engine."""
        if self.probe != "auto":
            return self.probe == "first"
        timed = history.cost("time") > 0
        build = sum(float(history.cost(phase)[timed].mean()) for phase in ("start", "build")) if timed.any() else 0.0
        look = sum(float(history.cost(phase)[timed].mean()) for phase in ("gate", "time")) if timed.any() else 0.0
        return 0 < DEAR * build < look

    def _engines_of(self, history: History) -> _Engines:
        """What the fingerprints say: a cache of a prefix of this history."""
        if self._engines.history() is not history:
            self._engines = _Engines(history)
        self._engines.update(history)
        return self._engines

    def _fit(
        self, x: Floats, history: History, live: Floats, links: list[tuple[int, int]], rng: np.random.Generator | None
    ) -> _Model:
        """The sparse model; with `rng` one of values perturbed by their noise, which spreads Thompson samples."""
        rows, y, weight = _measured(history)
        x, sigma = x[rows], float(np.hypot(_noise(history), MISFIT))
        if rng is not None:
            y = y + rng.standard_normal(len(y)) * sigma / np.sqrt(weight)
        prior = np.clip(self.active * live / LIVE, 1e-4, 0.5)
        if self._probes_first(history):
            prior[self._engines_of(history).known_live()] = 0.4
        gram = x.T @ (weight[:, None] * x)
        first = _regress(x, y, weight, gram, prior, sigma, self.slab, 12, rng, None)
        pairs = _pairs(x, y - x @ first.mean, weight, gram, first.mean, links)
        z = x[:, pairs[:, 0]] * x[:, pairs[:, 1]]
        wz = weight[:, None] * z
        cross = x.T @ wz
        prior = np.append(prior, np.full(len(pairs), 0.02))
        gram = np.block([[gram, cross], [cross.T, z.T @ wz]])
        start = np.append(first.mean, np.zeros(len(pairs)))
        xz = np.concatenate([x, z], axis=1)
        return _Model(_regress(xz, y, weight, gram, prior, sigma, self.slab, 4, rng, start), pairs)


def _changes(space: SearchSpace) -> tuple[Indices, NDArray[np.int16]]:
    """Every way to change one knob: its knob (p,) and the code that it takes (p,)."""
    found = [(k, c) for k, n in enumerate(space.cardinalities.tolist()) for c in range(n) if c != space.default[k]]
    pairs = np.asarray(found, np.int16).reshape(-1, 2)
    return pairs[:, 0].astype(np.intp), pairs[:, 1]


def _features(history: History, knob: Indices, code: NDArray[np.int16]) -> Floats:
    """1 where a route holds a change, (n, p)."""
    x: Floats = (history.codes.take(knob, axis=1) == code).astype(np.float64)
    return x


def _route(space: SearchSpace, knob: Indices, code: NDArray[np.int16], group: Indices) -> NDArray[np.int16]:
    codes = space.default.copy()
    codes[knob[group]] = code[group]
    return codes


def _settled(history: History, codes: NDArray[np.int16]) -> bool:
    """True when the route was timed, failed, or is pending; one that was only built is worth a timing."""
    if not history.contains(codes) or history.is_pending(codes):
        return history.contains(codes)
    rows = history.rows_of(codes)
    return any(history.until[row] == Phase.TIME or history.outcome[row] != Outcome.OK for row in rows)


def _noise(history: History) -> float:
    """Relative standard deviation of one value; 1 % where nothing is known."""
    return max(history.noise or 0.01, 1e-4)


def _measured(history: History) -> tuple[Indices, Floats, Floats]:
    """One row per measurement of an engine: row, log(value / reference), weight (1 for the usual error), each (m,)."""
    rows = np.flatnonzero(~np.isnan(history.value))
    # A value that was taken over from an equal engine is not a second measurement.
    seen: dict[tuple[int, float], int] = {}
    for row, key in zip(rows.tolist(), zip(history.fingerprint[rows], history.value[rows], strict=True), strict=True):
        seen.setdefault(key if key[0] >= 0 else (-1 - row, 0.0), row)
    rows = np.fromiter(seen.values(), np.intp, len(seen))
    error = history.error[rows] / history.value[rows]
    error = np.where(np.isnan(error), _noise(history), np.maximum(error, 1e-6))
    return rows, np.log(history.value[rows] / history.value[0]), np.clip((_noise(history) / error) ** 2, 0.05, 20.0)


class _Engines:
    """What equal and different fingerprints say about changes; grows with one history.

    dead (changes): how often a change made no difference. shown: changes that alone made a difference, each with
    the route where it did. links: (child, parent) changes. mixed: groups that made a difference, not yet resolved.
    """

    def __init__(self, history: History | None) -> None:
        self.history = (lambda: None) if history is None else weakref.ref(history)
        self.rows = 0
        self.splits = False  # equal routes had different fingerprints: nothing can be learnt from them
        self.tests: dict[int, int] = {}
        self.shown: dict[int, Bools] = {}
        self.links: list[tuple[int, int]] = []
        self.mixed: list[tuple[int, ...]] = []
        self._first: dict[int, int] = {}  # route -> fingerprint
        if history is not None:
            self._knob, self._code = _changes(history.space)

    def update(self, history: History) -> None:
        """Takes the new rows in."""
        n = len(history)
        if self.rows == n:
            return
        on = history.codes.take(self._knob, axis=1) == self._code
        for row in range(self.rows, n):
            mark = int(history.fingerprint[row])
            if mark < 0:
                continue
            if self._first.setdefault(int(history.route[row]), mark) != mark:
                self.splits = True
            self._compare(on, history.fingerprint, row, mark)
        self.rows = n

    def _compare(self, on: Bools, fingerprint: NDArray[np.int32], row: int, mark: int) -> None:
        differs = on[:row] != on[row]
        distance = np.where(fingerprint[:row] >= 0, differs.sum(axis=1), 1 << 20)
        equal = np.flatnonzero(fingerprint[:row] == mark)
        if equal.size:
            self._inert(on, row, int(equal[distance[equal].argmin()]))
        for other in {0, int(distance.argmin())} if row else ():
            if fingerprint[other] not in (-1, mark) and 0 < distance[other] <= 16:
                self._matters(tuple(np.flatnonzero(differs[other]).tolist()), on[row] & on[other])

    def _inert(self, on: Bools, row: int, other: int) -> None:
        """Two routes are one engine: what differs is inert where the rest is as it is there."""
        context = on[row] & on[other]
        for change in np.flatnonzero(on[row] != on[other]).tolist():
            if change in self.shown:  # it matters elsewhere: one of the changes that were not made there hides it
                parents = np.flatnonzero(context & ~self.shown[change]).tolist()
                self.links += [(change, p) for p in parents if (change, p) not in self.links and len(parents) <= 4]
            else:
                self.tests[change] = self.tests.get(change, 0) + 1

    def _matters(self, group: tuple[int, ...], context: Bools) -> None:
        """The group changed the engine: at least one change of it matters, and if only one is left, that one."""
        if len(group) == 1:
            if self.tests.pop(group[0], 0):  # it was inert elsewhere: what is changed here lets it count
                parents = np.flatnonzero(context).tolist()
                self.links += [(group[0], p) for p in parents if len(parents) <= 4]
            self.shown.setdefault(group[0], context)
        else:
            self.mixed.append(group)

    def live(self, changes: int) -> Floats:
        """P(a change alters the engine), (p,)."""
        odds = np.full(changes, LIVE / (1 - LIVE))
        if not self.splits:
            for change, tests in self.tests.items():
                odds[change] *= MERGED**tests
        live: Floats = np.maximum(odds / (1 + odds), FLOOR)
        return live

    def suspicious(self, history: History) -> bool:
        """True while every engine is a new one and it is not known whether a rebuild would be one too."""
        n = len(history)
        if n < SUSPICIOUS or self.splits or history.is_pending(history.space.default):
            return False
        marks = history.fingerprint[history.fingerprint >= 0]
        if len(marks) < SUSPICIOUS or len(np.unique(marks)) < len(marks):
            return False
        # Where the rebuild itself failed, nothing more is asked.
        return len(history.rows_of(history.space.default)) == 1

    def next_probe(
        self, space: SearchSpace, history: History, failing: _Failing, rng: np.random.Generator
    ) -> Proposal | None:
        """The next group test; None when all is known, or nothing can be learnt.

        First `Phase.BUILD`: which changes make another engine; then `Phase.GATE`: which of those run and pass.
        """
        if self.splits or not (history.fingerprint[: len(history)] >= 0).any():
            return None
        causes = FailureCauses(space, history)  # its values are the changes here
        waiting = causes.indicators(history.pending).any(axis=0)
        barred = (failing.single > GUILTY) | waiting
        live = set(self.known_live())
        group = self._group(live, failing.build, barred, rng)
        codes = _route(space, self._knob, self._code, group)
        if group.size and not history.contains(codes):
            return Proposal(codes, Phase.BUILD)
        barred[[c for c in range(len(barred)) if c not in live]] = True
        group = causes.group(0.55, rng.random(len(barred)), barred)
        codes = _route(space, self._knob, self._code, group)
        return Proposal(codes, Phase.GATE) if group.size and not history.contains(codes) else None

    def probed(self, x: Floats, history: History, failing: _Failing) -> Indices | None:
        """The changes that make another engine, which works; None when so much was timed that pairs can be told.

        x: what the routes hold, (n, p).
        """
        live = np.zeros(x.shape[1], bool)
        live[self.known_live()] = True
        ran = (history.outcome == Outcome.OK) & (history.until >= Phase.GATE)
        safe = np.flatnonzero(live & (x[ran].any(axis=0)) & (failing.single < GUILTY))
        rows, _, _ = _measured(history)
        return safe if len(rows) < 1 + DENSE * safe.size else None

    def known_live(self) -> list[int]:
        """Changes that made another engine, alone or as the only one of a group that is not inert; ascending."""
        return sorted({g[0] for g in self._open() if len(g) == 1} | set(self.shown))

    def _open(self) -> list[list[int]]:
        """Groups that made another engine, less what is inert, where nothing is left that is known to be the reason."""
        groups = ([c for c in g if c not in self.tests] for g in self.mixed if not any(c in self.shown for c in g))
        return [g for g in groups if g]

    def _group(self, live: set[int], failing: Floats, barred: Bools, rng: np.random.Generator) -> Indices:
        """The changes of the next group test for engines; empty when all are known.

        Half of the smallest group that is known to matter; else a new one that is inert with a chance of about 1/2.
        """
        unknown = ~barred
        unknown[[*self.tests, *live]] = False
        halves = [g for g in self._open() if len(g) > 1 and unknown[g].all() and not live.intersection(g)]
        if halves:
            smallest = min(halves, key=lambda g: (len(g), g))
            return np.asarray(smallest[: len(smallest) // 2], np.intp)
        share = min((1 + len(live)) / (4 + len(live) + len(self.tests)), 0.7)
        changes = np.flatnonzero(unknown)
        order = np.lexsort((rng.random(changes.size), np.round(failing[changes], 4)))
        chosen: dict[int, int] = {}
        inert = works = 1.0
        for change in changes[order].tolist():
            works *= 1 - failing[change]
            if chosen and (inert * (1 - share) < 0.4 or works < 0.5):
                break
            if int(self._knob[change]) not in chosen:
                chosen[int(self._knob[change])] = change
                inert *= 1 - share
        return np.asarray(sorted(chosen.values()), np.intp)


class _Failing(NamedTuple):
    """P(a change fails), (p,), in any phase and in the build; P(a pair fails though neither change does), (p, p)."""

    single: Floats
    build: Floats
    pair: Floats


def _blame(x: Floats, history: History, prior: Floats) -> _Failing:
    """Who made routes fail: an engine that fails at the gate was built, and one that was only built proves no more."""
    ok = history.outcome == Outcome.OK
    built = ok | (history.fingerprint >= 0) | (history.outcome == Outcome.ACCURACY)
    build, build_pair = _causes(x[built], x[~built], prior * BUILDING)
    gate, gate_pair = _causes(x[ok & (history.until >= Phase.GATE)], x[built & ~ok], prior * (1 - BUILDING))
    return _Failing(1 - (1 - build) * (1 - gate), build, np.minimum(build_pair + gate_pair, 0.95))


def _causes(worked: Floats, failed: Floats, prior: Floats) -> tuple[Floats, Floats]:
    """P(a change is a cause), (p,), and of pairs, (p, p): noisy-or, a prior per change with its level estimated too."""
    cleared = np.log(WORKED) * np.minimum(worked.sum(axis=0), 4)
    seen, level, p = worked.any(axis=0) | failed.any(axis=0), 1.0, worked.shape[1]
    single, explained = prior, np.ones(len(failed))
    for _ in range(3):
        share = np.clip(prior * level, 1e-4, 0.5)
        logit = np.log(share / (1 - share)) + cleared
        single, explained = _noisy_or(failed, logit)
        # As if 20 changes had been seen before, with the prior's share of causes.
        level = (20 + single[seen].sum() / prior.mean()) / (20 + seen.sum())
    pair = np.zeros((p, p))
    strange = np.flatnonzero(explained < 0.9)
    if strange.size:
        together = worked.T.astype(np.float32) @ worked.astype(np.float32) > 0
        np.fill_diagonal(together, True)
        for row in strange.tolist():
            on = np.flatnonzero(failed[row])
            suspects = ~together[np.ix_(on, on)]
            pair[np.ix_(on, on)] += suspects * ((1 - explained[row]) / max(suspects.sum() / 2, 1))
    return single, pair


def _noisy_or(failed: Floats, logit: Floats) -> tuple[Floats, Floats]:
    """Posterior of each change to be a cause, (p,), and P(some change explains the failure) of each row.

    Belief propagation: change j hears from a failed row the odds 1 / P(the row fails | j is innocent).
    """
    out = 1 / (1 + np.exp(-np.clip(logit, -30, 30)))
    doubtful = np.flatnonzero((logit > -10) & failed.any(axis=0))
    if not doubtful.size:
        return out, np.zeros(len(failed))
    on, prior = failed[:, doubtful], logit[doubtful]
    said = np.zeros_like(on)
    log_innocent = said
    for _ in range(6):
        odds = np.clip(prior + said.sum(axis=0) - said, -30, 30)
        log_innocent = -np.log1p(np.exp(odds)) * on
        others = log_innocent.sum(axis=1, keepdims=True) - log_innocent
        said = 0.5 * said - 0.5 * np.log(-np.expm1(np.log(1 - LEAK) + others)) * on
    out[doubtful] = 1 / (1 + np.exp(-np.clip(prior + said.sum(axis=0), -30, 30)))
    return out, -np.expm1(log_innocent.sum(axis=1))


class _Posterior(NamedTuple):
    """Of each effect: P(it is not 0), and mean and standard deviation if it is not."""

    included: Floats
    size: Floats
    deviation: Floats

    @property
    def mean(self) -> Floats:
        return self.included * self.size


class _Model(NamedTuple):
    """Effects of p changes, then of pairs (q, 2) of changes."""

    posterior: _Posterior
    pairs: Indices

    def means(self) -> tuple[Floats, Floats]:
        """Posterior means: of the changes (p,), of the pairs (q,)."""
        mean, p = self.posterior.mean, len(self.posterior.size) - len(self.pairs)
        return mean[:p], mean[p:]

    def drawn(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """One draw from the posterior."""
        included, size, deviation = self.posterior
        effect = np.where(rng.random(len(size)) < included, size + deviation * rng.standard_normal(len(size)), 0.0)
        p = len(size) - len(self.pairs)
        return effect[:p], effect[p:]

    def predict(self, x: Floats) -> Floats:
        """Posterior mean of log(latency / reference) of rows of features."""
        single, pair = self.means()
        out: Floats = x @ single + (x[:, self.pairs[:, 0]] * x[:, self.pairs[:, 1]]) @ pair
        return out


class _Gaussian(NamedTuple):
    """Joint Gaussian posterior of the effects of the changes `safe` (s,) among p: mean (s,), covariance (s, s).

    Of the changes that make another engine most have an effect: with as few timings as there are of them a spike at
    0 would only make their posterior ragged.
    """

    safe: Indices
    mean: Floats
    covariance: Floats
    p: int

    @classmethod
    def fit(cls, x: Floats, history: History, safe: Indices) -> _Gaussian:
        """Bayesian linear regression (Bishop, "Pattern Recognition and Machine Learning", 2006, eqs. 3.50 and 3.51)."""
        rows, y, weight = _measured(history)
        sigma = float(np.hypot(_noise(history), MISFIT))
        design = np.concatenate([np.ones((len(rows), 1)), x[np.ix_(rows, safe)]], axis=1)
        weighted = design.T * (weight / sigma**2)
        prior = np.append(1 / sigma**2, np.full(safe.size, 1 / WIDE**2))
        covariance = np.linalg.inv(weighted @ design + np.diag(prior))
        mean = covariance @ (weighted @ y)
        return cls(safe, mean[1:], covariance[1:, 1:], x.shape[1])

    @property
    def pairs(self) -> Indices:
        """No pairs, (0, 2)."""
        return np.zeros((0, 2), np.intp)

    def _all(self, effect: Floats) -> tuple[Floats, Floats]:
        out = np.zeros(self.p)
        out[self.safe] = effect
        return out, np.zeros(0)

    def means(self) -> tuple[Floats, Floats]:
        """Posterior means: of the changes (p,), of no pairs (0,)."""
        return self._all(self.mean)

    def drawn(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """One draw from the posterior."""
        factor = np.linalg.cholesky(self.covariance)
        return self._all(self.mean + factor @ rng.standard_normal(self.safe.size))

    def predict(self, x: Floats) -> Floats:
        """Posterior mean of log(latency / reference) of rows of features."""
        out: Floats = x[:, self.safe] @ self.mean
        return out


def _regress(
    x: Floats,
    y: Floats,
    weight: Floats,
    gram: Floats,
    prior: Floats,
    sigma: float,
    slab: float,
    sweeps: int,
    rng: np.random.Generator | None,
    start: Floats | None,
) -> _Posterior:
    """Spike and slab by coordinate ascent (Carbonetto and Stephens 2012, eqs. 8-10), gram = x' W x.

    The slab is given in log-ratios: slab^2 is their sigma_a^2 sigma^2. It and the noise are fixed, not averaged over.
    From scratch the noise comes down to sigma from the spread of the values, so that a strong effect
    is not split among its neighbours for ever; with `rng` effects are visited in random order.
    """
    column = x.T @ weight
    xy, total, total_y = x.T @ (weight * y), weight.sum(), float(weight @ y)
    diagonal = gram.diagonal()
    mean = np.zeros(len(prior)) if start is None else start.copy()
    included, size = prior.copy(), np.zeros(len(prior))
    variance = np.full(len(prior), slab**2)
    used = np.flatnonzero(diagonal > 0)
    fitted, level = gram @ mean, 0.0
    hot = max(float(np.std(y)), sigma) if start is None else sigma
    logit = np.log(prior / (1 - prior))
    diagonals, targets = diagonal.tolist(), xy.tolist()
    for sweep in range(sweeps):
        cold = min(1.0, 1.5 * sweep / sweeps)
        noise = (hot ** (1 - cold) * sigma**cold) ** 2
        variance = 1 / (diagonal / noise + 1 / slab**2)  # eq. 8
        # The level: the reference was measured with noise too.
        change = (total_y - column @ mean) / (total + noise / sigma**2) - level
        level += change
        fitted += column * change
        constant = (logit + 0.5 * np.log(variance / slab**2)).tolist()
        variances = variance.tolist()
        for j in (used if rng is None else rng.permutation(used)).tolist():
            before = float(mean[j])
            mu = variances[j] / noise * (targets[j] - float(fitted[j]) + diagonals[j] * before)  # eq. 9
            log_odds = min(constant[j] + 0.5 * mu * mu / variances[j], 30.0)  # eq. 10
            alpha = 1 / (1 + np.exp(-log_odds))
            after = alpha * mu
            if abs(after - before) > 1e-6:
                fitted += gram[j] * (after - before)
                mean[j] = after
            included[j], size[j] = alpha, mu
    return _Posterior(included, size, np.sqrt(variance))


def _pairs(
    x: Floats, residual: Floats, weight: Floats, gram: Floats, mean: Floats, links: list[tuple[int, int]]
) -> Indices:
    """Pairs of changes worth a term, (q, 2): among the 12 strongest, the 20 that residuals ask for most, and links."""
    p = len(mean)
    top = np.argsort(-np.abs(mean), kind="stable")[:12]
    i, j = np.triu_indices(len(top), 1)
    pair = np.zeros((p, p), bool)
    pair[np.minimum(top[i], top[j]), np.maximum(top[i], top[j])] = True
    if len(residual) > 10:
        residual = weight * (residual - np.average(residual, weights=weight))
        score = np.abs(x.T @ (residual[:, None] * x)) / np.sqrt(np.maximum(gram, 1.0))
        score[(gram < 2) | np.tri(p, dtype=bool)] = 0.0
        most = np.argsort(-score, axis=None, kind="stable")[:20]
        pair.ravel()[most[score.ravel()[most] > 0]] = True
    for child, parent in links[-40:]:
        pair[min(child, parent), max(child, parent)] = True
    pair &= gram > 0  # never seen together: nothing is known
    return np.argwhere(pair)


def _best_group(effect: Floats, pair_effect: Floats, pairs: Indices, failing: _Failing, knob: Indices) -> Indices:
    """The changes with the largest (sum of gains) x P(no failure), greedily; at most one per knob."""
    gain, risk = -effect, -np.log1p(-np.minimum(failing.single, 0.999)) + 1e-6
    pair_risk = -np.log1p(-failing.pair)
    on, taken = np.zeros(len(effect), bool), set[int]()
    total, extra = 0.0, np.zeros(len(effect))
    promising = np.flatnonzero(gain > 0)
    for j in promising[np.argsort(-gain[promising] / risk[promising], kind="stable")].tolist():
        more = risk[j] + extra[j]
        if int(knob[j]) not in taken and (total + gain[j]) * np.exp(-more) > total:
            on[j] = True
            taken.add(int(knob[j]))
            total, extra = total + gain[j], extra + pair_risk[j]
    matters = np.flatnonzero(pair_effect)
    if matters.size:
        around = np.unique(pairs[matters])
        place = {int(j): i for i, j in enumerate(around)}
        size = np.zeros((len(around), len(around)))
        for m in matters.tolist():
            a, b = place[int(pairs[m, 0])], place[int(pairs[m, 1])]
            size[a, b] = size[b, a] = pair_effect[m]
        for j in np.tile(around, 2).tolist():
            worth = gain[j] - size[place[j]] @ on[around]
            wanted = bool(worth > max(0.0, total * np.expm1(risk[j] + pair_risk[j] @ on)))
            on[j] = wanted and (on[j] or not (on & (knob == knob[j])).any())
    return np.flatnonzero(on)
