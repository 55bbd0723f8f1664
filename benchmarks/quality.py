"""Quality of the strategies on planted landscapes, at several budgets of builds.

Run: python benchmarks/quality.py --strategies tpe sparse_random --families sparse inert [--seeds 20]
     [--landscapes 20] [--budgets 50 100 200 400] [--unit timed] [--salt TEXT] [--knobs N] [--jobs 2]
     [--out docs/strategies.csv]

Study s of a family runs on landscape s modulo `--landscapes`, with all seeds hashed from (family, number): every
strategy meets the same landscapes and the same noise. A build-only probe counts as a build. Strategies do not know
the budget, so that one study of the largest budget holds the smaller ones: what a study of B builds recommends is
worked out anew, by a fresh strategy object, from the first B builds alone. As in a live study, an engine whose
fingerprint was timed already is not timed again for another route; that route takes its value over.

`--unit timed`: the budgets are numbers of timed evaluations; studies end at `--builds` builds all the same, and
those that timed less by then are looked at there. `--salt`: other landscapes, noise and studies. Strategies are tuned
on those of other salts ("quality" was one), never on the default ones, which the results are of. `--knobs`: spaces of
so many knobs in place of the family's own number.

Per strategy, family and budget, means over the studies, standard errors from the means of the landscapes:
- share: true gain of the recommended route, -log(latency / reference), over the gain of the best feasible route;
  only landscapes where the best exceeds 2 %. gain: the true gain itself, on all landscapes.
- min regret: how far the route with the smallest raw value falls short of the best, in true log-ratio.
- timed: timed evaluations. Then the numbers of failures by kind, and milliseconds per proposal.

--out: a CSV of these means; rows of other strategies, families and budgets that it holds already stay. Results by
timed evaluations want a file of their own (docs/strategies-timed.csv).
"""

from __future__ import annotations

import argparse
import csv
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpt_search import History, Outcome, load_strategy, simulate
from gpt_search.domain.budget import row_at
from gpt_search.domain.landscape import FAMILIES, planted
from gpt_search.domain.streams import seed_from
from gpt_search.search.discovery import strategy_names
from gpt_search.search.prefixes import AsLive, Seen, charged, recommendations

WORTH = 0.02
"""A landscape whose best route gains less has no meaningful share."""
BUDGETS = (50, 100, 200, 400)
SALT = "results"
"""No strategy was tuned on these landscapes; tune on others, such as `--salt quality`."""
FAILURES = tuple(o.name.lower() for o in Outcome if o is not Outcome.OK)
MEANS = ("share", "gain", "min_regret", "timed", *FAILURES, "proposal_ms")
WITH_ERROR = ("share", "gain", "min_regret")
_COLUMNS = (name for mean in MEANS for name in ((mean, f"{mean}_se") if mean in WITH_ERROR else (mean,)))
FIELDS = ("strategy", "family", "budget", "studies", "landscapes", *_COLUMNS)


class Task(NamedTuple):
    """One study: which strategy, on which landscape, and the budgets to look at."""

    strategy: str
    family: str
    study: int
    landscape: int
    budgets: tuple[int, ...]
    builds: int = 0  # where it ends; 0 is the largest budget
    unit: str = "builds"
    salt: str = SALT
    knobs: int | None = None


class Result(NamedTuple):
    """What one study had reached at one budget; `means` are in the order of `MEANS`, NaN where undefined."""

    task: Task
    budget: int
    means: tuple[float, ...]


def run(task: Task) -> list[Result]:
    """One study of the largest budget, looked at after each of the budgets."""
    landscape = planted(task.family, seed_from(task.salt, "landscape", task.family, task.landscape), task.knobs)
    best = landscape.best_log_ratio
    measure = Seen(AsLive(landscape.measure))
    done = simulate(
        landscape.space,
        task.strategy,
        measure,
        trials=None,
        seed=seed_from(task.salt, "study", task.family, task.study),
        builds=task.builds or max(task.budgets),
        noise=landscape.noise,
    )
    truth = np.asarray(landscape.true_log_ratio(done.codes))
    history, results = done.history, list[Result]()
    ends = _ends(task, measure, history)
    chosen = recommendations(lambda: load_strategy(task.strategy), landscape.space, measure.seen, ends, landscape.noise)
    for budget, end in zip(sorted(task.budgets), ends, strict=True):
        nominated, rows = chosen[end], slice(1, end + 1)
        gain = -truth[nominated] if nominated is not None else 0.0
        value = np.where(history.feasible, history.value, np.inf)[: end + 1]
        outcomes = np.bincount(history.outcome[rows], minlength=len(Outcome))
        proposals = done.proposal_seconds[rows]
        means = {
            "share": gain / -best if -best > WORTH else math.nan,
            "gain": gain,
            "min_regret": truth[int(np.argmin(value))] - best,
            "timed": float((history.cost("time")[rows] > 0).sum()),
            "proposal_ms": 1e3 * proposals.mean() if proposals.size else 0.0,
        } | {o.name.lower(): float(outcomes[o]) for o in Outcome if o is not Outcome.OK}
        results.append(Result(task, budget, tuple(float(means[name]) for name in MEANS)))
    return results


def _ends(task: Task, measure: AsLive, history: History) -> list[int]:
    """The last row within each budget, ascending."""
    if task.unit == "builds":
        return [int(row) for row in row_at("builds", *charged(measure.seen), sorted(task.budgets))]
    timed = np.append(0, np.cumsum(history.cost("time")[1:] > 0))
    return [min(int(np.searchsorted(timed, budget)), len(timed) - 1) for budget in sorted(task.budgets)]


def summarised(results: Iterable[Result]) -> list[dict[str, str]]:
    """Means and standard errors per strategy, family and budget, as rows of the CSV."""
    cells: dict[tuple[str, str, int], dict[int, list[tuple[float, ...]]]] = defaultdict(lambda: defaultdict(list))
    for r in results:
        cells[r.task.strategy, r.task.family, r.budget][r.task.landscape].append(r.means)
    rows = []
    for (strategy, family, budget), by_landscape in cells.items():
        # Studies of one landscape are alike: the landscapes' means are the independent numbers.
        means = np.asarray([np.mean(group, axis=0) for group in by_landscape.values()])
        row = {
            "strategy": strategy,
            "family": family,
            "budget": str(budget),
            "studies": str(sum(map(len, by_landscape.values()))),
            "landscapes": str(len(by_landscape)),
        }
        for column, name in zip(means.T, MEANS, strict=True):
            known = column[~np.isnan(column)]
            row[name] = f"{known.mean():.4f}" if known.size else ""
            if name in WITH_ERROR:
                row[f"{name}_se"] = f"{known.std(ddof=1) / math.sqrt(known.size):.4f}" if known.size > 1 else ""
        rows.append(row)
    return rows


def merged(path: Path, new: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The rows of the file, those of the same strategy, family and budget replaced."""
    rows: dict[tuple[str, str, int], dict[str, str]] = {}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            rows = {(r["strategy"], r["family"], int(r["budget"])): r for r in csv.DictReader(file)}
    rows |= {(r["strategy"], r["family"], int(r["budget"])): r for r in new}
    return [rows[key] for key in sorted(rows)]


def table(rows: Sequence[dict[str, str]]) -> str:
    """What is printed: one line per strategy, family and budget."""
    lines = [
        f"{'family':12} {'strategy':24} {'budget':>6} {'share':>6} {'+-':>5} {'gain %':>6} {'+-':>5} "
        f"{'min regret %':>12} {'+-':>5} {'timed':>6} {'failed':>6} {'ms':>6}"
    ]
    for r in sorted(rows, key=lambda r: (list(FAMILIES).index(r["family"]), int(r["budget"]), -float(r["gain"]))):
        failed = sum(float(r[name]) for name in FAILURES)
        lines.append(
            f"{r['family']:12} {r['strategy'][:24]:24} {r['budget']:>6} {_number(r['share'], 2):>6} "
            f"{_number(r['share_se'], 2):>5} {_number(r['gain'], 2, 100):>6} {_number(r['gain_se'], 2, 100):>5} "
            f"{_number(r['min_regret'], 2, 100):>12} {_number(r['min_regret_se'], 2, 100):>5} "
            f"{_number(r['timed'], 0):>6} {failed:>6.0f} {_number(r['proposal_ms'], 1):>6}"
        )
    return "\n".join(lines)


def _number(text: str, digits: int, times: float = 1.0) -> str:
    return f"{float(text) * times:.{digits}f}" if text else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=strategy_names(), help="strategy specs; all by default")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--seeds", type=int, default=20, help="studies per strategy and family")
    parser.add_argument("--landscapes", type=int, default=20, help="landscapes per family")
    parser.add_argument("--budgets", type=int, nargs="+", default=list(BUDGETS), help="builds, or timed evaluations")
    parser.add_argument("--unit", choices=("builds", "timed"), default="builds", help="of the budgets")
    parser.add_argument("--builds", type=int, default=400, help="where studies end, with --unit timed")
    parser.add_argument("--salt", default=SALT, help="text that landscapes, noise and studies are seeded from")
    parser.add_argument("--knobs", type=int, help="of every landscape; by default the family's own number")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--out", type=Path, help="CSV that takes the results in")
    arguments = parser.parse_args()
    if min(arguments.seeds, arguments.landscapes, arguments.jobs, *arguments.budgets) < 1:
        parser.error("seeds, landscapes, budgets and jobs are at least 1")
    if arguments.out is not None and (arguments.salt, arguments.knobs) != (SALT, None):
        parser.error(
            "--out takes results on the landscapes that no strategy was tuned on: leave --salt and --knobs out"
        )
    builds = arguments.builds if arguments.unit == "timed" else 0
    for spec in arguments.strategies:
        load_strategy(spec)  # an error comes at once
    tasks = [
        Task(
            strategy,
            family,
            study,
            study % arguments.landscapes,
            tuple(arguments.budgets),
            builds,
            arguments.unit,
            arguments.salt,
            arguments.knobs,
        )
        for family in arguments.families
        for strategy in arguments.strategies
        for study in range(arguments.seeds)
    ]
    for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(threads, "1")  # a study has one core; processes that are spawned load numpy after this
    if arguments.jobs == 1:
        rows = summarised(result for task in tasks for result in run(task))
    else:
        with ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as pool:
            rows = summarised(result for results in pool.map(run, tasks) for result in results)
    print(table(rows))
    if arguments.out is not None:
        rows = merged(arguments.out, rows)
        part = arguments.out.with_name(f"{arguments.out.name}.part")  # the results of hours: never half a file
        with part.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        part.replace(arguments.out)


if __name__ == "__main__":
    main()
