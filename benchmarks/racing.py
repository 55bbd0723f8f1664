"""Racing: how often the best route of a study is discarded, and how many rounds racing saves.

Run: python benchmarks/racing.py [--studies 1000] [--routes 100] [--parts errors builds rounds]   (about ten minutes)

**Errors.** Whole studies of `routes` routes, timed one after the other by the rule of `measure.sequential`. An
error is a study in which a truly fastest route was discarded. Landscapes: "equal" (all routes are equally fast, so
discarding any of them is an error), "rising" (each route a little faster than all before it, by a tenth of the noise
of a round, so the best is always the newest), "normal" (log-ratios spread normally by 5 %). Given with the upper end
of the one-sided 95 % Clopper-Pearson interval.

**Builds.** The same, where builds of one route differ: each route is built once, and its engine lies off the route by a
normal amount. Counted are studies that discarded a route that is truly fastest as an engine, and as a route.

**Rounds.** Racing against sampling every route the same number of rounds N. Both end with the route of the smallest
estimate (racing: among those not discarded). N is the smallest, up to 400, that ends with the best route or one within
0.2 % of it as often as racing did on the same landscapes; beside it, as often as the lower end of the one-sided 95 %
interval of racing's share.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import cache
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt_search.measure.confidence import counts, margins
from gpt_search.measure.paired import order_statistics
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.sequential import SPREAD_SHARE

Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, int]], Floats]

NEAR = 0.002
"""Log-ratios as close as this to the best's are as good as the best, when the end of a study is judged."""


PRECISE = Protocol(max_rounds=200, contender_error=0.001)
"""Tells apart what the default protocol leaves to the confirmation: contenders get up to 200 rounds."""


def _drift(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Latencies rise by 1 % per turn all through the route; the sides take turns at going first."""
    turns = np.where(np.arange(shape[1]) % 2 == 0, -1.0, 1.0)
    return rng.standard_normal(shape) + _PER_SIGMA * 0.01 * turns


def _steps(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Before one turn in twenty the level jumps by up to 10 % either way, and stays there."""
    jumps = np.where(rng.random((*shape, 2)) < 0.05, rng.uniform(-0.1, 0.1, (*shape, 2)), 0.0)
    level = np.cumsum(jumps.reshape(shape[0], -1), axis=1).reshape(*shape, 2)
    turns = np.where(np.arange(shape[1]) % 2 == 0, -1.0, 1.0)
    return rng.standard_normal(shape) + _PER_SIGMA * (level[..., 1] - level[..., 0]) * turns


def _states(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Each round finds the device in one of two states, 2 sigma apart; a tenth of that is noise."""
    return rng.choice(np.array([-1.0, 1.0]), shape) + 0.1 * rng.standard_normal(shape)


# Noise of a round in units of sigma. "bursts": one in ten is ten times as wide. Drift and steps are what
# pairing leaves of them: the halves of a round are one turn apart. They are stated at a sigma of 2 %.
_PER_SIGMA = 1 / 0.02
NOISES: dict[str, Draw] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "t3": lambda rng, shape: rng.standard_t(3, shape),
    "bursts": lambda rng, shape: rng.standard_normal(shape) * np.where(rng.random(shape) < 0.1, 10.0, 1.0),
    "uniform": lambda rng, shape: rng.uniform(-(3**0.5), 3**0.5, shape),
    "states": _states,
    "drift": _drift,
    "steps": _steps,
}


class Raced(NamedTuple):
    """One route in many studies: discarded, rounds, estimate, mean, standard deviation, and the sign test's upper bound
    (infinite while it has none); each (studies,).
    """

    discarded: NDArray[np.bool_]
    rounds: NDArray[np.int64]
    estimate: Floats
    mean: Floats
    spread: Floats
    upper: Floats


def race(x: Floats, best: Floats, spread: Floats, trial: int, protocol: Protocol) -> Raced:
    """`sequential.decide` round after round, for many studies at once.

    x: (studies, max_rounds) log-ratios of the route. best, spread: (studies,), as in
    `sequential.Best`.
    """
    studies = len(x)
    out = Raced(np.zeros(studies, bool), np.zeros(studies, np.int64), *(np.zeros(studies) for _ in range(4)))
    active = np.arange(studies)
    for n in range(protocol.min_rounds, protocol.max_rounds + 1):
        seen = x[active, :n]
        mean, s = seen.mean(axis=1), seen.std(axis=1, ddof=1)
        below, _ = margins(n, trial, protocol.alpha)
        ordered = np.sort(seen, axis=1)
        lower = mean - below * np.maximum(s, spread[active])
        if (count := counts(n, trial, protocol.alpha)[0]) <= n:
            lower = np.maximum(lower, ordered[:, n - count])
        worse = lower > best[active]
        k, divisor = order_statistics(n)
        error = (ordered[:, n - k] - ordered[:, k - 1]) / divisor
        ends = worse | (error <= protocol.contender_error) | (n == protocol.max_rounds)
        done = active[ends]
        out.discarded[done] = worse[ends]
        out.rounds[done] = n
        out.estimate[done] = np.median(seen[ends], axis=1)
        out.mean[done] = mean[ends]
        out.spread[done] = s[ends]
        count = counts(n, trial, protocol.alpha)[1]
        out.upper[done] = ordered[ends, count - 1] if count <= n else np.inf
        active = active[~ends]
    return out


class Studies(NamedTuple):
    """Many studies, (routes, studies): truths of routes and of their engines, estimates, discards, rounds."""

    truth: Floats
    built: Floats
    estimate: Floats
    discarded: NDArray[np.bool_]
    rounds: NDArray[np.int64]

    @property
    def errors(self) -> int:
        """Studies in which a truly fastest route was discarded."""
        return self._discarding(self.truth)

    @property
    def errors_as_built(self) -> int:
        """Studies in which a truly fastest engine was discarded."""
        return self._discarding(self.built)

    def _discarding(self, values: Floats) -> int:
        return int(((values == values.min(axis=0)) & self.discarded).any(axis=0).sum())

    @property
    def ended_well(self) -> float:
        """Share of studies that end with the best route or one as good."""
        return ended_well(self.truth, np.where(self.discarded, np.inf, self.estimate))


def ended_well(truth: Floats, estimate: Floats) -> float:
    """Share of studies whose route of the smallest estimate is within NEAR of the best; both (routes, studies)."""
    chosen = np.take_along_axis(truth, estimate.argmin(axis=0)[None], axis=0)[0]
    return float((chosen <= truth.min(axis=0) + NEAR).mean())


def landscape(name: str, sigma: float, routes: int, studies: int, rng: np.random.Generator) -> Floats:
    """True log-ratios to the reference, (routes, studies)."""
    kind, _, spread = name.partition(" ")
    if kind == "equal":
        return np.full((routes, studies), -0.05)
    if kind == "rising":
        return np.repeat(-0.1 * sigma * np.arange(1.0, routes + 1)[:, None], studies, axis=1)
    return float(spread or 0.05) * rng.standard_normal((routes, studies))


def study(
    name: str,
    noise: str,
    sigma: float,
    routes: int,
    studies: int,
    protocol: Protocol,
    seed: int = 0,
    between: float = 0.0,
) -> Studies:
    """Races `routes` routes in each of `studies` studies. The reference is timed first, against itself, 5 rounds.

    between: relative standard deviation between builds of one route; each is built once.
    """
    rng = np.random.default_rng(seed)
    truth = landscape(name, sigma, routes, studies, rng)
    built = truth + between * rng.standard_normal(truth.shape) if between else truth
    spreads = [(sigma * NOISES[noise](rng, (studies, protocol.min_rounds))).std(axis=1, ddof=1)]
    spread = SPREAD_SHARE * spreads[0]
    best = np.zeros(studies)
    found = []
    for i in range(routes):
        x = built[i][:, None] + sigma * NOISES[noise](rng, (studies, protocol.max_rounds))
        raced = race(x, best, spread, i + 1, protocol)
        spreads.append(raced.spread)
        spread = SPREAD_SHARE * np.median(spreads, axis=0)
        margin = np.array([margins(int(n), i + 1, protocol.alpha)[1] for n in raced.rounds])
        upper = np.minimum(raced.mean + margin * np.maximum(raced.spread, spread), raced.upper)
        best = np.minimum(best, upper)
        found.append(raced)
    return Studies(
        truth,
        built,
        np.stack([r.estimate for r in found]),
        np.stack([r.discarded for r in found]),
        np.stack([r.rounds for r in found]),
    )


def fixed_rounds(
    truth: Floats, noise: str, sigma: float, goals: Sequence[float], most: int = 400, seed: int = 1
) -> list[int]:
    """For each goal, the smallest N at which N rounds of every route end well as often; `most` where it is too few."""
    rng = np.random.default_rng(seed)
    routes, studies = truth.shape
    x = np.stack([(sigma * NOISES[noise](rng, (studies, most))).astype(np.float32) for _ in range(routes)])

    @cache
    def share(n: int) -> float:
        return ended_well(truth, truth + np.median(x[:, :, :n], axis=2))

    found = []
    for goal in goals:
        low, high = 1, most  # the share grows with N, but for chance: a search by halves
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if share(middle) >= goal else (middle + 1, high)
        found.append(high)
    return found


def clopper_pearson(events: int, trials: int, level: float = 0.95) -> float:
    """The upper end of the one-sided interval of a share."""
    from scipy.special import betaincinv

    return 1.0 if events >= trials else float(betaincinv(events + 1, trials - events, level))


class Saving(NamedTuple):
    """Racing's mean rounds a route; studies that end well; N for that share, and for the lower end of its interval."""

    used: float
    well: int
    same: int
    lower: int


def saving(
    name: str, noise: str, sigma: float, routes: int, studies: int, protocol: Protocol, most: int = 400
) -> Saving:
    """Racing against fixed N: see the top of this file."""
    s = study(name, noise, sigma, routes, studies, protocol)
    well = round(s.ended_well * studies)
    goals = (s.ended_well, 1 - clopper_pearson(studies - well, studies))
    return Saving(float(s.rounds.mean()), well, *fixed_rounds(s.truth, noise, sigma, goals, most))


def report_errors(routes: int, studies: int) -> None:
    """The part "errors"."""
    protocol = Protocol()
    print(f"studies that discarded a best route, of {studies} with {routes} routes; {protocol}")
    for name in ("equal", "rising", "normal 0.05"):
        for noise in NOISES:
            for sigma in (0.01, 0.02, 0.05) if name == "equal" and noise not in ("drift", "steps") else (0.02,):
                s = study(name, noise, sigma, routes, studies, protocol)
                bound = clopper_pearson(s.errors, studies)
                print(
                    f"  {name:12} {noise:8} {sigma:.0%}: {s.errors:3}, at most {bound:.2%}; "
                    f"{s.rounds.mean():.1f} rounds a route, {s.discarded.mean():.1%} of the routes discarded",
                    flush=True,
                )


def report_builds(routes: int, studies: int) -> None:
    """The part "builds"."""
    for protocol in (Protocol(), PRECISE):
        print(f"studies that discarded a best engine, or route, of {studies} with {routes} routes; {protocol}")
        for name in ("equal", "normal 0.05"):
            for between in (0.001, 0.002, 0.005, 0.01):
                s = study(name, "normal", 0.01, routes, studies, protocol, between=between)
                print(
                    f"  {name:12} builds differ by {between:.1%}: engine {s.errors_as_built}, route {s.errors}; "
                    f"{s.discarded.mean():.1%} of the routes discarded",
                    flush=True,
                )


def report_rounds(routes: int, studies: int) -> None:
    """The part "rounds"."""
    for protocol in (PRECISE, Protocol()):
        print(f"rounds against fixed N, {studies} studies of {routes} routes; {protocol}")
        for name in ("normal 0.05", "normal 0.1"):
            for noise in ("normal", "t3", "bursts"):
                for sigma in (0.01, 0.03):
                    found = saving(name, noise, sigma, routes, studies, protocol)
                    print(
                        f"  {name:12} {noise:8} {sigma:.0%}: {found.used:.1f} rounds a route, "
                        f"{found.well / studies:.1%} end well; N {found.same}, "
                        f"{found.same / found.used:.1f} times as many (lower end: {found.lower}, "
                        f"{found.lower / found.used:.1f} times)",
                        flush=True,
                    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=1000, help="for the errors, and for the builds")
    parser.add_argument("--saving-studies", type=int, default=500, help="for the rounds")
    parser.add_argument("--routes", type=int, default=100)
    parser.add_argument(
        "--parts", nargs="+", choices=("errors", "builds", "rounds"), default=["errors", "builds", "rounds"]
    )
    arguments = parser.parse_args()
    began = perf_counter()
    if "errors" in arguments.parts:
        report_errors(arguments.routes, arguments.studies)
    if "builds" in arguments.parts:
        report_builds(arguments.routes, arguments.studies)
    if "rounds" in arguments.parts:
        report_rounds(arguments.routes, arguments.saving_studies)
    print(f"{perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
