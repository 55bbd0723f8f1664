"""Planted landscapes: families of spaces whose truth is known, grown from a seed.

Knobs, values, defaults, effects, failures and costs follow from (family, seed, knobs, noise) alone, on
every machine. The families imitate what real tuners show: few knobs matter, most changes do nothing,
gains are a few per cent each, and some settings fail.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt_search.domain.blueprint import Costs, Term
from gpt_search.domain.errors import InputError, did_you_mean
from gpt_search.domain.landscape_model import Landscape
from gpt_search.domain.planting import Planter
from gpt_search.domain.streams import seed_from

__all__ = ["FAMILIES", "Landscape", "planted", "planted_from_spec"]

_MIN_KNOBS, _MAX_KNOBS = 6, 4000


def _sparse(p: Planter, harmful: int = 18) -> None:
    helps, harms, fails = p.take(p.scaled(10)), p.take(p.scaled(harmful)), p.take(p.scaled(9))
    p.helps(helps)
    p.harms(harms)
    p.interact(helps, harms, p.scaled(8))
    p.fails(fails)
    p.rest_inert(0.5)


def _sparse_hard(p: Planter) -> None:
    _sparse(p, harmful=36)


def _hierarchical(p: Planter) -> None:
    parents = p.take(max(1, p.count // 10))
    family: dict[int, list[int]] = {}
    for parent in parents:
        family[parent] = p.take(max(2, min(int(p.rng.integers(3, 7)), p.count // 3)))
        for child in family[parent]:
            p.child(child, parent)
    for parent in parents:
        for grandparent in family[parent][:1]:
            if p.count >= 40 and p.rng.random() < 0.5:
                grandchildren = p.take(2)
                family[grandparent] = grandchildren
                for child in grandchildren:
                    p.child(child, grandparent)
    nested = [k for children in family.values() for k in children if k not in family]
    nested = [int(k) for k in p.rng.permutation(nested)]
    helps = nested[: p.scaled(8)] + p.take(p.scaled(4))
    harms = nested[p.scaled(8) : p.scaled(8) + p.scaled(10)] + parents[: p.scaled(6)] + p.take(p.scaled(6))
    fails = nested[p.scaled(8) + p.scaled(10) :][: p.scaled(5)] + p.take(p.scaled(4))
    p.helps(helps)
    p.harms(harms)
    p.interact(helps, harms, p.scaled(4))
    p.fails(fails)
    p.rest_inert(0.5)


def _inert(p: Planter) -> None:
    p.inert.update(p.take(round(0.8 * p.count)))
    helps, harms, fails = p.take(p.scaled(10)), p.take(p.scaled(12)), p.take(p.scaled(5))
    p.helps(helps)
    p.harms(harms)
    p.interact(helps, harms, p.scaled(4))
    p.fails(fails)


def _infeasible(p: Planter) -> None:
    helps, harms = p.take(p.scaled(14)), p.take(p.scaled(12))
    fails, others = p.take(max(1, p.count // 5)), p.take(max(1, p.count // 5))
    p.helps(helps)
    p.harms(harms)
    p.interact(helps, harms, p.scaled(4))
    p.fails(fails)
    p.fails_together(helps, helps, p.scaled(6))
    p.fails_together(helps, others, p.scaled(8))
    p.fails_together(others, others, p.scaled(12))
    p.rest_inert(0.5)


def _dense(p: Planter) -> None:
    knobs = p.take(p.count)
    tables: list[tuple[int, int | None, NDArray[np.float64]]] = []
    for i, a in enumerate(knobs):
        tables.append((a, None, p.rng.normal(0.0, 2.0, p.cards[a])))
        tables += [(a, b, p.rng.normal(0.0, 1.0, (p.cards[a], p.cards[b]))) for b in knobs[:i]]
    for a, b, table in tables:
        table[p.defaults[a]] = 0.0  # an interaction is 0 where either knob is at its default
        if b is not None:
            table[:, p.defaults[b]] = 0.0
    # The scale is set so that the best route gains between 10 and 30 %, whatever was drawn.
    target = -math.log1p(-p.rng.uniform(0.10, 0.30))
    probe = Landscape(p.blueprint([Term(a, b, t) for a, b, t in tables], {}, 0.0, Costs(1, 1, 1, 1, 1, 1), 1.0))
    scale = target / -probe.best_log_ratio if probe.best_log_ratio < 0 else 0.01
    p.terms += [Term(a, b, t * scale) for a, b, t in tables]


def _null(p: Planter) -> None:
    p.rest_inert(0.5)


@dataclass(frozen=True)
class _Family:
    explanation: str
    plant: Callable[[Planter], None]
    knobs: int = 195
    max_knobs: int = _MAX_KNOBS
    noise: float = 0.012
    many_values: float = 0.04
    max_routes: float = math.inf


_FAMILIES = {
    "sparse": _Family("few knobs matter, some in pairs, some fail", _sparse),
    "sparse_hard": _Family("as sparse, with twice the harmful knobs and twice the noise", _sparse_hard, noise=0.024),
    "hierarchical": _Family("a parent at some value makes its children inert", _hierarchical),
    "inert": _Family("four knobs in five never change the engine", _inert),
    "infeasible": _Family("many routes fail, by single knobs and by pairs, in every way there is", _infeasible),
    "dense": _Family(
        "few knobs with many values, and every pair interacts", _dense, 10, 12, many_values=0.5, max_routes=2**15
    ),
    "null": _Family("nothing matters: the default is the best there is", _null),
}

FAMILIES: Mapping[str, str] = MappingProxyType({name: family.explanation for name, family in _FAMILIES.items()})
"""The families by name, each with what it is like."""


def planted(family: str, seed: int | str, knobs: int | None = None, *, noise: float | None = None) -> Landscape:
    """A landscape of that family: the same for equal arguments, in every process.

    family: one of `FAMILIES`. knobs: how many vary; None for the family's own (195; dense: 10). With
    fewer knobs fewer matter, in proportion. noise: relative standard deviation of one measured latency;
    None for the family's own (0.012; sparse_hard: 0.024).

    Raises InputError for an unknown family, or a number out of range.
    """
    found = _FAMILIES.get(family) if isinstance(family, str) else None
    if found is None:
        raise InputError(
            f"unknown landscape family {family!r}{did_you_mean(str(family), _FAMILIES)}; "
            f"there are {', '.join(_FAMILIES)}"
        )
    count = found.knobs if knobs is None else knobs
    if isinstance(count, bool) or not isinstance(count, int) or not _MIN_KNOBS <= count <= found.max_knobs:
        raise InputError(f"a {family} landscape has {_MIN_KNOBS} to {found.max_knobs} knobs, not {count!r}")
    if not isinstance(seed, str | Integral) or isinstance(seed, bool):
        raise InputError(f"the seed of a landscape is a whole number or text, not {seed!r}")
    seed = seed if isinstance(seed, str) else int(seed)  # numpy's integers would not pass through JSON
    sd = found.noise if noise is None else noise
    if isinstance(sd, bool) or not isinstance(sd, int | float) or not 0 <= sd <= 1:
        raise InputError(f"the noise is a relative standard deviation from 0 to 1, not {noise!r}")
    # Not the noise: landscapes that differ in noise alone have the same truth.
    p = Planter(
        np.random.default_rng(seed_from("planted", family, seed, count)), count, found.many_values, found.max_routes
    )
    build = p.size(2.0, 40.0)
    costs = Costs(p.size(0.5, 3.0), build, p.size(0.3, 2.0), p.size(1.0, 5.0), 10.0 * build, 60.0)
    reference_ms = p.size(0.3, 30.0)
    found.plant(p)
    spec: dict[str, object] = {"family": family, "seed": seed, "knobs": count, "noise": float(sd)}
    return Landscape(p.blueprint(p.terms, spec, float(sd), costs, reference_ms))


def planted_from_spec(spec: Mapping[str, Any]) -> Landscape:
    """The landscape that `Landscape.spec` described, or one described by hand.

    spec: "family" and "seed", and where wanted "knobs" and "noise". Raises InputError for another form.
    """
    unknown = set(spec) - {"family", "seed", "knobs", "noise"}
    if unknown or not {"family", "seed"} <= set(spec):
        raise InputError(
            "a landscape spec has 'family' and 'seed', and may have 'knobs' and 'noise'; "
            f"got {', '.join(map(str, spec)) or 'nothing'}"
        )
    return planted(spec["family"], spec["seed"], spec.get("knobs"), noise=spec.get("noise"))
