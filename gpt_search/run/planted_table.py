"""A table of a planted landscape: recorded as a compiler would be, and the truth behind it is known.

For tests of strategies on tables, and of tables themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from gpt_search.domain.digest import digest_of
from gpt_search.domain.evaluation import Evaluation, Round
from gpt_search.domain.landscape_model import Landscape
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.space import Codes
from gpt_search.domain.streams import seed_from
from gpt_search.measure.protocol import Protocol
from gpt_search.store.settings import StudySettings
from gpt_search.store.table_file import write_table
from gpt_search.store.table_record import TableRecord


def planted_table(
    path: str | Path,
    landscape: Landscape,
    routes: int | Codes | None = None,
    *,
    rounds: int = 40,
    builds: int = 3,
    several: int = 8,
    between: float = 0.0,
    noise: float = 0.01,
    seed: int = 0,
    fingerprint: str = "EXACT",
) -> None:
    """Writes a table of a landscape's routes.

    routes: how many, the reference first, the others drawn without replacement; None for all; or the routes
    themselves, int16 (n, d), which the reference comes before. rounds: of each timed record. several: that many
    feasible routes are built `builds` times, and each build is off by a relative standard deviation of `between`.
    noise: of a round. fingerprint: with "EXACT" equal engines share rounds; with "NONE" each route has its own.

    Raises InputError as `write_table` does, ValueError for more routes than the space has or can be enumerated.
    """
    space = landscape.space
    rng = np.random.default_rng(seed_from(seed, "planted table"))
    if isinstance(routes, np.ndarray):
        others = [one for one in np.unique(routes, axis=0) if (one != space.default).any()]
    else:
        if space.size > 1 << 24 or (routes or 0) > space.size:
            raise ValueError(f"{routes} routes of a space of {space.size}")
        numbers = np.delete(np.arange(space.size), space.index_of(space.default))
        chosen = rng.permutation(numbers)[: space.size - 1 if routes is None else routes - 1]
        others = [space.codes_at(int(i)) for i in chosen]
    codes = [space.default, *others]
    settings = StudySettings(
        {
            "backend": "planted",
            "workload": {"digest": digest_of(landscape.spec()), "name": "planted"},
            "tolerance": {"metric": "lInf", "default": landscape.tolerance, "by_output": {}},
            "database": {"tuner_version": "planted", "digest": landscape.database().digest},
            "environment": {"machine": "planted"},
            "fingerprint": fingerprint,
            "protocol": Protocol().to_json(),
            "time_infeasible": False,
            "recording": {"routes": len(codes), "rounds": rounds, "builds": builds, "seed": seed},
        }
    ).with_space(space)
    write_table(path, settings, _records(landscape, codes, rng, rounds, builds, several, between, noise, fingerprint))


def _records(
    landscape: Landscape,
    codes: list[Codes],
    rng: np.random.Generator,
    rounds: int,
    builds: int,
    several: int,
    between: float,
    noise: float,
    fingerprint: str,
) -> Iterator[TableRecord]:
    """First all routes, then the further builds of some, each engine's rounds once."""
    by_print: dict[str, int] = {}
    number = 0
    feasible: list[Codes] = []
    for build in range(builds):
        for one in codes if build == 0 else feasible[:several]:
            truth, costs = landscape.truth(one), landscape.costs
            seen = by_print.get(truth.fingerprint or "") if build == 0 and fingerprint == "EXACT" else None
            cost = {"start": costs.start if number == 0 else 0.0, "build": costs.build}
            facts: dict[str, Any] = {}
            if fingerprint != "NONE":
                facts["fingerprint"] = truth.fingerprint
            if truth.failed_in != Phase.BUILD and seen is None:
                cost["gate"] = costs.gate
            if truth.outcome in (Outcome.OK, Outcome.ACCURACY):
                facts["violation"] = truth.violation
            if truth.outcome is Outcome.OK and seen is None:
                off = between * rng.standard_normal()
                ratios = truth.log_ratio + off + noise * rng.standard_normal(rounds)
                sides = landscape.reference_ms * np.exp(noise * rng.standard_normal(rounds))
                facts["rounds"] = tuple(
                    Round((float(side * math.exp(ratio)),), (float(side),), 0.04 * i, i % 2 == 1)
                    for i, (ratio, side) in enumerate(zip(ratios, sides, strict=True))
                )
                cost["time"] = costs.time
            if truth.outcome is Outcome.OK and build == 0:
                feasible.append(one)
            found = Evaluation(truth.outcome, Phase.TIME, cost_s=cost, **facts)
            yield TableRecord(tuple(map(int, one)), build, found, seen)
            if seen is None and truth.fingerprint and build == 0:
                by_print[truth.fingerprint] = number
            number += 1
