import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt_search import InputError
from gpt_search.analysis import figures
from gpt_search.analysis.curves import best_so_far_table

NAN = np.nan


def curve() -> pd.DataFrame:
    value = [10.0, 12.0, 9.0, NAN, 90.0, 8.0]
    return best_so_far_table(value, error_ms=[0.1] * 6)


def effects(
    n: int, method: str = "mean effect", name: str = "fusion:a_knob_with_a_very_long_name:and_levels_"
) -> pd.DataFrame:
    ratio = np.linspace(0.8, 1.1, n)
    return pd.DataFrame(
        {
            "knob": [f"{name}{i}" for i in range(n)],
            "value": "off",
            "importance": np.arange(n, 0, -1) / max(1, n * (n + 1) / 2),
            "ratio": ratio,
            "low": ratio - 0.05,
            "high": ratio + 0.05,
            "trials": 3,
            "failed": 0.0,
            "method": method,
        }
    )


def overflow(figure) -> list[str]:
    """Texts and the like that leave the figure."""
    figure.draw_without_rendering()
    box, out = figure.bbox, []
    for ax in figure.axes:
        tight = ax.get_tightbbox()
        if tight.x0 < box.x0 - 1 or tight.x1 > box.x1 + 1 or tight.y0 < box.y0 - 1 or tight.y1 > box.y1 + 1:
            out.append(f"{tight} in {box}")
    return out


def test_the_curve_is_drawn_as_the_table_says():
    figure, ax = figures.new_figure()
    assert figures.best_so_far(curve(), ax, confirmed=(1.05, 1.1, 1.15)) is ax
    lines = {line.get_label(): line for line in ax.lines}
    assert list(lines["best so far"].get_ydata()) == curve()["best"].tolist()
    assert set(lines["reference"].get_ydata()) == {1.0}
    assert lines["failed"].get_xdata().tolist() == [3]
    assert lines["slower, off the scale"].get_xdata().tolist() == [4]
    assert ax.get_xlabel() and ax.get_ylabel()
    low, high = ax.get_ylim()
    assert low < 1.0 and high > 1.25 and low > 0.5
    assert {"best so far", "confirmed, 95 % interval"} <= {t.get_text() for t in ax.get_legend().get_texts()}
    assert overflow(figure) == []


@pytest.mark.parametrize("high", [None, np.inf])
def test_a_confirmation_without_an_interval_is_a_point(high):
    _, ax = figures.new_figure()
    figures.best_so_far(curve(), ax, confirmed=(0.0, 1.4, high))
    (point,) = [line for line in ax.lines if line.get_label() == "confirmed, no interval"]
    assert list(point.get_ydata()) == [1.4]
    assert 0.4 < ax.get_ylim()[0] < 1.4 < ax.get_ylim()[1] < 2


def test_a_confirmation_below_1_is_on_the_picture():
    _, ax = figures.new_figure()
    figures.best_so_far(curve(), ax, confirmed=(0.7, 0.72, 0.74))
    assert ax.get_ylim()[0] < 0.7


def test_a_study_of_the_reference_alone():
    figure, ax = figures.new_figure()
    figures.best_so_far(best_so_far_table([1.0]), ax)
    assert overflow(figure) == []


@pytest.mark.parametrize("n", [1, 2, 12, 200])
@pytest.mark.parametrize("method", ["mean effect", "single change", "PED-ANOVA"])
def test_importance_shows_the_first_knobs_with_whole_labels(n, method):
    table = effects(n, method)
    figure, ax = figures.new_figure(figures.importance_height(table))
    assert figures.importance(table, ax) is ax
    labels = [t.get_text().replace("\n", "") for t in ax.get_yticklabels()]
    expected = table["knob"] if method == "PED-ANOVA" else table["knob"] + "=off"
    assert labels == expected.tolist()[:12]
    assert ax.yaxis_inverted()
    if n > 12:
        assert ax.get_title(loc="left") == f"the first 12 of {n} knobs"
    assert ax.get_xlabel()
    assert overflow(figure) == []


def test_two_methods_are_told_apart_by_marker_and_legend():
    long_name = "mha_fusion:a_rather_long_name_for_a_knob"
    table = pd.concat([effects(2, "mean effect"), effects(2, "single change", long_name)], ignore_index=True)
    figure, ax = figures.new_figure()
    figures.importance(table, ax)
    assert overflow(figure) == []
    assert {t.get_text() for t in ax.get_legend().get_texts()} == {
        "this change alone",
        "mean over the trials with it",
    }


@pytest.mark.parametrize("low", [NAN, 0.0])
def test_unknown_and_endless_intervals(low):
    table = effects(3).assign(low=low, high=NAN if np.isnan(low) else 50.0)
    figure, ax = figures.new_figure()
    figures.importance(table, ax)
    assert ax.get_xlim()[1] < 2
    assert overflow(figure) == []


def test_no_knob_changed_is_said():
    _, ax = figures.new_figure()
    figures.importance(effects(0), ax)
    assert ax.texts[0].get_text() == "no knob was changed"


def test_a_missing_column_is_named():
    _, ax = figures.new_figure()
    with pytest.raises(InputError, match="'best'"):
        figures.best_so_far(curve().drop(columns="best"), ax)
    with pytest.raises(InputError, match="'ratio'"):
        figures.importance(effects(2).drop(columns="ratio"), ax)


def test_files_are_svg_and_png_and_equal_figures_give_equal_files(tmp_path):
    contents = []
    for folder in ("a", "b"):
        figure, ax = figures.new_figure()
        figures.best_so_far(curve(), ax)
        paths = figures.save_figure(figure, tmp_path / folder / "curve.1")
        assert [p.name for p in paths] == ["curve.1.svg", "curve.1.png"]
        contents.append([p.read_bytes() for p in paths])
    assert contents[0] == contents[1]
    assert contents[0][0].lstrip().startswith(b"<?xml") and b"best so far" in contents[0][0]
    assert contents[0][1].startswith(b"\x89PNG")


def test_drawing_changes_no_global_style():
    import matplotlib

    before = dict(matplotlib.rcParams)
    _, ax = figures.new_figure()
    figures.best_so_far(curve(), ax)
    assert dict(matplotlib.rcParams) == before


@given(st.text(st.sampled_from("abcABC:_=.-xyz"), max_size=150))
def test_labels_take_two_lines_at_most_and_keep_both_ends(name):
    label = figures.short_label(name)
    lines = label.split("\n")
    assert len(lines) <= 2 and max(map(len, lines)) <= 35
    if len(name) <= 68:
        assert label.replace("\n", "") == name
    else:
        assert label.replace("\n", "").endswith(name[-40:]) and label.startswith(name[:20])
