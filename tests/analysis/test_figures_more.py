"""Figures of experiments, and those of one study beside its curve."""

import numpy as np
import pandas as pd
import pytest

from gpt_search import InputError
from gpt_search.analysis import figures, figures_compare, figures_study

NAMES = ["random", "tpe", "gp:acquisition=expected-improvement,startup=20", *(f"other-{i}" for i in range(17))]
BUDGETS = (5, 20, 100, 400)


def curves(names=NAMES, scale=10.0) -> pd.DataFrame:
    rows = [(s, b, scale / b + i, scale / b, scale / b + 2 * i) for i, s in enumerate(names) for b in BUDGETS]
    return pd.DataFrame(rows, columns=["strategy", "budget", "median", "low", "high"])


def ranks(names=NAMES) -> pd.DataFrame:
    rows = [(s, b, 1.0 + i, 0.8 + i, 1.2 + i) for i, s in enumerate(names) for b in BUDGETS]
    return pd.DataFrame(rows, columns=["strategy", "budget", "rank", "low", "high"])


def steps() -> pd.DataFrame:
    rows = [(s, b, min(1.0, 0.01 * i * b / 5)) for i, s in enumerate(NAMES) for b in (0, *BUDGETS)]
    return pd.DataFrame(rows, columns=["strategy", "budget", "share"])


def bars() -> pd.DataFrame:
    rows = [("bert", 1.2, 1.1, 1.3, False), ("one build", 0.9, np.nan, np.inf, True), ("x" * 80, 1.0, 0.9, 1.1, False)]
    return pd.DataFrame(rows, columns=["label", "speedup", "low", "high", "preliminary"])


def knobs(n=15) -> pd.DataFrame:
    share = np.linspace(0.3, 0.0, n)
    names = [f"fusion:a_knob_with_a_very_long_name:and_levels_{i}" for i in range(n)]
    return pd.DataFrame({"knob": names, "importance": share, "low": share / 2, "high": share * 2})


def pairs(k=6) -> pd.DataFrame:
    names = [f"fusion:a_knob_with_a_long_name_{i}" for i in range(k)]
    rows = [(a, "on", b, "on", 0.95 + 0.02 * i, 0.01) for i, a in enumerate(names) for b in names[i + 1 :]]
    table = pd.DataFrame(rows, columns=["first", "first_value", "second", "second_value", "ratio", "holm"])
    table.loc[1, ["ratio", "holm"]] = np.nan
    return table


def accuracy() -> pd.DataFrame:
    rows = [
        (0, 1.0, 0.1, True, False),
        (1, 1.2, 0.5, True, True),
        (2, 1.3, np.inf, False, False),
        (3, 0.9, 0.0, True, True),
    ]
    return pd.DataFrame(
        [*rows, (4, np.nan, 2.0, False, False)], columns=["trial", "speedup", "loss", "feasible", "front"]
    )


def cost() -> pd.DataFrame:
    rows = [(g, p, s, 7) for g in ("ok", "build error") for p, s in (("build", 900.0), ("gate", 10.0), ("odd", 1.0))]
    return pd.DataFrame(rows, columns=["group", "phase", "seconds", "trials"])


def lanes() -> pd.DataFrame:
    rows = [(k, 10 * k + i, "build", 9.0 * i, 9.0 * i + 8, i == 1) for k in range(3) for i in range(4)]
    return pd.DataFrame(rows, columns=["lane", "trial", "phase", "start_s", "end_s", "failed"])


LAST = ranks()[ranks()["budget"] == 400]
DRAWN = {
    "anytime": (4.5, curves(), figures_compare.anytime, {}),
    "anytime of few": (3.0, curves(["a"], 0.0), figures_compare.anytime, {"unit": "seconds"}),
    "ecdf": (4.5, steps(), figures_compare.ecdf, {"until": 500}),
    "ranks": (4.5, ranks(), figures_compare.ranks, {}),
    "critical difference": (
        figures_compare.critical_difference_height(20, 2),
        LAST,
        figures_compare.critical_difference,
        {"difference": 3.0, "groups": [NAMES[:4], NAMES[3:7]]},
    ),
    "speed-ups": (figures_compare.bars_height(3), bars(), figures_compare.speedups, {}),
    "importance": (4.5, knobs(), figures_study.importance_bars, {}),
    "importance of nothing": (2.0, knobs().assign(importance=0.0), figures_study.importance_bars, {}),
    "interactions": (figures_study.interaction_height(pairs()), pairs(), figures_study.interaction_map, {}),
    "interactions of none": (2.0, pairs(1), figures_study.interaction_map, {}),
    "accuracy": (3.0, accuracy(), figures_study.accuracy_latency, {}),
    "cost": (figures_study.cost_height(cost()), cost(), figures_study.cost, {}),
    "timeline": (figures_study.timeline_height(lanes()), lanes(), figures_study.timeline, {}),
}


@pytest.mark.parametrize("name", DRAWN)
def test_each_figure_returns_its_axes_and_fits(name):
    height, table, draw, options = DRAWN[name]
    before = table.copy()
    figure, ax = figures.new_figure(height)
    assert draw(table, ax, **options) is ax
    figure.draw_without_rendering()
    tight, box = ax.get_tightbbox(), figure.bbox
    assert tight.x0 >= box.x0 - 1 and tight.x1 <= box.x1 + 1, (tight, box)
    assert tight.y0 >= box.y0 - 1 and tight.y1 <= box.y1 + 1, (tight, box)
    pd.testing.assert_frame_equal(table, before)


@pytest.mark.parametrize("name", DRAWN)
def test_a_missing_column_is_named(name):
    _, table, draw, options = DRAWN[name]
    lacking = str(table.columns[0])
    with pytest.raises(InputError, match="has no column"):
        draw(
            table.drop(columns=lacking) if lacking != "trial" else table.drop(columns="loss"),
            figures.new_figure()[1],
            **options,
        )


def test_strategies_are_told_apart_without_colour():
    looks = figures_compare.looks(NAMES)
    assert len({(str(look["ls"]), look["marker"]) for look in looks.values()}) == len(NAMES)
    assert looks == figures_compare.looks(reversed(NAMES))
    assert len({tuple(map(str, look.values())) for look in figures_compare.looks(map(str, range(48))).values()}) == 48


def test_curves_lie_where_the_table_says():
    _, ax = figures.new_figure()
    figures_compare.anytime(curves(["a", "b"], 2000.0), ax)
    assert ax.get_yscale() == "log" and ax.get_xscale() == "log"
    assert ax.lines[0].get_ydata().tolist() == [400.0, 100.0, 20.0, 5.0]
    low, high = ax.get_ylim()
    assert low < 5 and high > 400
    _, ax = figures.new_figure()
    figures_compare.anytime(curves(["a"], 10.0), ax)
    low, high = ax.get_ylim()
    assert low <= 0.025 and high >= 2.0
