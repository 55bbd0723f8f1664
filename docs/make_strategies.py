"""Writes docs/strategies.md and its figures from the strategies' docstrings and measured results.

The results, docs/strategies.csv and docs/strategies-timed.csv, are made by benchmarks/quality.py, and
docs/strategies-cost.csv by benchmarks/proposal_cost.py (the page says how). A test holds the page to what this script
would write.
"""

from __future__ import annotations

import ast
import csv
import re
from pathlib import Path

from gpt_search.analysis.figures_compare import looks
from gpt_search.domain.landscape import FAMILIES
from gpt_search.search.discovery import folder, strategy_info

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "strategies.csv"
TIMED = HERE / "strategies-timed.csv"
COST = HERE / "strategies-cost.csv"
FIGURES = HERE / "figures"
OVERVIEW = 200
"""Builds: what a search of a day takes where a build takes minutes."""
Results = dict[tuple[str, str, int], dict[str, str]]

_HEAD = """# Strategies

Made from the strategies' docstrings and from measurements by `python docs/make_strategies.py`; a test holds
them together.
How to write one: [strategies/README.md](../strategies/README.md).

Milliseconds per proposal are of processor time, at 195 knobs with 1,000 rows of history, on one core of an AMD EPYC
("-": it ends before that); evaluations per second are of `simulate`, 200 trials
(`python benchmarks/proposal_cost.py --out docs/strategies-cost.csv`).

| strategy | what it does | ms per proposal | evaluations/s | options |
|---|---|---|---|---|
"""
_MEASURED = """
## Measured quality

Planted landscapes: spaces of 195 knobs (`dense`: 10) whose truth is known. The numbers are the true gain of the
route that a study recommends, as a share of the gain of the best feasible route there is, with standard errors over
landscapes. A build-only probe counts as a build. "Raw minimum": how much slower than the best route the one with the
smallest measured value truly is, which a tool that believes single timings would report (log-ratio, in per cent). Each
study met another landscape, on none of which a strategy was tuned; `studies` says how many there were. Every strategy
meets the same ones.

"""
_COMMAND = """
Made by `python benchmarks/quality.py --strategies NAME ... --families NAME ... --seeds N --landscapes N
--budgets 25 50 100 200 400 --out docs/strategies.csv`, with N the number of studies in the tables.
"""
_BY_TIMING = """
### inert, by timed evaluations

Where a timing is much dearer than a build, timed evaluations are what counts, and a strategy that builds without timing
saves them: share of the best gain after so many, in studies of at most 400 builds.
`python benchmarks/quality.py --unit timed --families inert --strategies NAME ... --budgets 20 40 60 90 120 --out
docs/strategies-timed.csv`

"""


def results(path: Path = RESULTS) -> Results:
    """The measured results by (strategy, family, budget)."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {(r["strategy"], r["family"], int(r["budget"])): r for r in csv.DictReader(file)}


def strategies_page() -> str:
    """The page: a table of all strategies, what was measured, and what each is good and bad at."""
    found, infos = results(), strategy_info()
    with COST.open(newline="", encoding="utf-8") as file:
        costs = {row["strategy"]: row for row in csv.DictReader(file)}
    parts = [_HEAD]
    for info in infos:
        options = ", ".join(f"`{o.name}={o.default}`" for o in info.options)
        cost = costs.get(info.name, {})
        ms, speed = cost.get("then_ms"), cost.get("evaluations_per_s")
        shown = (_milliseconds(float(ms)) if ms else "-", f"{int(speed):,}" if speed else "-")
        parts.append(f"| [`{info.name}`](#{info.name}) | {info.summary} | {' | '.join(shown)} | {options} |\n")
    parts.append(_MEASURED)
    parts += _overview(found)
    for family, explanation in FAMILIES.items():
        parts += _family(family, explanation, found)
    if timed := results(TIMED):
        budgets = sorted({budget for _, _, budget in timed})
        names = sorted({name for name, _, _ in timed})
        parts += [_BY_TIMING, f"| strategy | {' | '.join(f'{b} timed' for b in budgets)} | studies |\n"]
        parts.append("|---" * (len(budgets) + 2) + "|\n")
        for name in names:
            cells = [_cell(timed.get((name, "inert", budget))) for budget in budgets]
            parts.append(f"| `{name}` | {' | '.join(cells)} | {timed[name, 'inert', budgets[0]]['studies']} |\n")
    parts.append(_COMMAND)
    for info in infos:
        text = ast.get_docstring(ast.parse((folder() / f"{info.name}.py").read_text(encoding="utf-8"))) or ""
        good = next((p for p in text.split("\n\n") if p.startswith("Good at:")), "")
        parts.append(f"\n## {info.name}\n\n{text.split(chr(10))[0]}\n")
        parts += [f"\n{good}\n"] if good else []
        parts += [f"\nSource: {re.sub('^Source: ', '', info.source)}\n"] if info.source else []
    return "".join(parts)


def _overview(found: Results) -> list[str]:
    """Every strategy at one budget on every family where there is something to find, the best mean first."""
    families = [f for f in FAMILIES if any(row["share"] for (_, of, _), row in found.items() if of == f)]
    shares = {
        name: [float(found[name, family, OVERVIEW]["share"]) for family in families]
        for name in {name for name, _, _ in found}
    }
    parts = [f"### All families, at {OVERVIEW} builds\n\n| strategy | {' | '.join(families)} | mean |\n"]
    parts.append("|---" * (len(families) + 2) + "|\n")
    for name in sorted(shares, key=lambda name: (-sum(shares[name]), name)):
        cells = [f"{share:.2f}" for share in (*shares[name], sum(shares[name]) / len(families))]
        parts.append(f"| `{name}` | {' | '.join(cells)} |\n")
    return [*parts, "\n"]


def _family(family: str, explanation: str, found: Results) -> list[str]:
    """The table of one family, best first, and its figure."""
    budgets = sorted({budget for _, of, budget in found if of == family})
    names = sorted({name for name, of, _ in found if of == family})
    if not names:
        return []
    last = budgets[-1]
    names.sort(key=lambda name: -float(found[name, family, last]["gain"]))
    heads = [f"{b} builds" for b in budgets]
    heads += [f"raw minimum at {last}, %", f"timed of {last}", f"failed of {last}", "studies"]
    parts = [f"### {family}\n\n{explanation[0].upper()}{explanation[1:]}.\n\n"]
    if not any(float(row["gain"]) for (_, of, _), row in found.items() if of == family):
        parts.append(
            f"All {len(names)} end with a true gain of 0 at budgets of {budgets[0]} to {last} builds, since no route "
            "has another;\nwhat is claimed there is in [measurement](measurement.md).\n\n"
        )
        return parts
    parts.append(f"| strategy | {' | '.join(heads)} |\n")
    parts.append("|---" * (len(heads) + 1) + "|\n")
    for name in names:
        row = found[name, family, last]
        failed = sum(float(row[kind]) for kind in ("accuracy", "build_error", "crash", "timeout", "memory"))
        minimum = f"{100 * float(row['min_regret']):.1f} ± {100 * float(row['min_regret_se'] or 0):.1f}"
        cells = [_cell(found.get((name, family, budget))) for budget in budgets]
        cells += [minimum, f"{float(row['timed']):.0f}", f"{failed:.0f}", row["studies"]]
        parts.append(f"| `{name}` | {' | '.join(cells)} |\n")
    parts.append(f"\n![{family}](figures/strategies-{family}.svg)\n\n")
    return parts


def _milliseconds(ms: float) -> str:
    return f"{ms:.0f}" if ms >= 10 else f"{ms:.1f}" if ms >= 1 else f"{ms:.2f}"


def _cell(row: dict[str, str] | None) -> str:
    if row is None:
        return "-"
    error = f" ± {float(row['share_se']):.2f}" if row["share_se"] else ""
    return f"{float(row['share']):.2f}{error}"


def draw(found: Results) -> None:
    """One anytime figure per family: share of the best gain against builds."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "strategies"
    from matplotlib import pyplot as plt

    FIGURES.mkdir(exist_ok=True)
    for family in FAMILIES:
        lines: dict[str, list[dict[str, str]]] = {}
        for (name, of, _), row in sorted(found.items()):
            if of == family and row["share"]:
                lines.setdefault(name, []).append(row)
        if not lines:
            continue
        figure, axes = plt.subplots(figsize=(7.6, 4.4), layout="constrained")
        shown = looks(lines)
        # The best at the end first, as the lines lie on the right.
        for name in sorted(lines, key=lambda n: -max((int(r["budget"]), float(r["share"])) for r in lines[n])[1]):
            rows = sorted(lines[name], key=lambda r: int(r["budget"]))
            axes.errorbar(
                [int(r["budget"]) for r in rows],
                [float(r["share"]) for r in rows],
                [float(r["share_se"] or 0) for r in rows],
                label=name,
                capsize=1.5,
                lw=1.1,
                ms=4,
                elinewidth=0.7,
                **shown[name],
            )
        axes.set(xscale="log", xlabel="builds", ylabel="share of the best gain", title=family, ylim=(-0.02, 1.02))
        ticks = sorted({int(r["budget"]) for rows in lines.values() for r in rows})
        axes.set_xticks(ticks, [str(t) for t in ticks])
        axes.minorticks_off()
        figure.legend(loc="outside right upper", fontsize="small", frameon=False)
        figure.savefig(FIGURES / f"strategies-{family}.svg", metadata={"Date": None})
        plt.close(figure)


if __name__ == "__main__":
    draw(results())
    (HERE / "strategies.md").write_text(strategies_page(), encoding="utf-8")
