from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpt_search.cli.main import cli
from gpt_search.cli.summary import minimisation_json, print_minimisation

BUILD = {"outcome": "OK", "log_ratio": -0.1, "rounds": [{"candidate_ms": [1.0]}]}


def interval(low: float, estimate: float, high: float | None) -> dict[str, Any]:
    return {"low": low, "estimate": estimate, "high": high, "level": 0.95, "n": 7}


def result(**changes: Any) -> dict[str, Any]:
    return {
        "winner": {"trial": 12, "route": "-a=1 -b=1 -c=1 -d=1"},
        "route": "-a=1 -b=1 -c=0 -d=0",
        "changes": "-a=1 -b=1",
        "removed": [
            {"knob": "c", "value": "1", "why": "SAME_ENGINE"},
            {"knob": "d", "value": "1", "why": "NOT_SLOWER"},
        ],
        "kept": [
            {"knob": "a", "value": "1", "worth": interval(1.021, 1.03, 1.039), "why": "SLOWER_WITHOUT"},
            {"knob": "b", "value": "1", "worth": None, "why": "ACCURACY"},
        ],
        "speedup": interval(1.02, 1.031, 1.042),
        "preliminary": False,
        "reason": "faster than the default",
        "margin": 0.003,
        "margin_rule": "a tenth of the gain",
        "level": 0.9875,
        "loss": interval(0.999, 1.0004, 1.002),
        "notes": [],
        "builds": 77,
        "accuracy": {"output": "y", "loss": 0.0012, "tolerance": 0.01},
        "steps": [{"without": ["d"], "result": "NOT_SLOWER", "builds": [BUILD]}],
        "finals": [{"without": ["d"], "refused": None, "builds": [BUILD]}],
        "headline": [BUILD],
        "without": {"a": [BUILD]},
    } | changes


def text(capsys: pytest.CaptureFixture[str], **changes: Any) -> str:
    print_minimisation(result(**changes), "cos")
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    return " ".join(out.split())


def test_what_is_left_and_what_it_is_worth(capsys: pytest.CaptureFixture[str]) -> None:
    assert text(capsys) == (
        "minimised 2 changes of trial 12 kept, 2 removed (1 without which the engine is the same); 77 builds made "
        "1.031x [1.020, 1.042] (95 %, 7 builds): faster than the default "
        "+0.04 % against the winner, below +0.20 % at 98.75 %; margin 0.3 % (a tenth of the gain) "
        "kept -a=1: +3.00 % [+2.10 %, +3.90 %] without it kept -b=1: needed, without it accuracy "
        "accuracy cos loss 0.0012 of 0.01 allowed (output 'y') "
        "route -a=1 -b=1"
    )


def test_the_other_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert text(capsys, route=None, reason="nothing to minimise: no") == "minimised nothing to minimise: no"
    assert "the engine is the winner's own" in text(capsys, loss=None, level=None)
    failed = text(capsys, speedup=None, preliminary=None, reason="the minimised route failed", accuracy=None)
    assert "the minimised route failed" in failed and "accuracy cos" not in failed
    few = {"speedup": interval(0.9, 1.03, None), "preliminary": True}
    assert "[0.900, inf] (95 %, 7 builds, preliminary: fewer than 5)" in text(capsys, **few)
    assert "note a route was not shipped" in text(capsys, notes=["a route was not shipped"])
    one = [{"knob": "a", "value": "1", "worth": interval(1.0, 1.03, None), "why": "SLOWER_WITHOUT"}]
    shown = text(capsys, kept=one)
    assert "[+0.00 %, any] without it" in shown and "hold together" not in shown


def test_json_has_every_build_without_its_samples() -> None:
    shown = minimisation_json(result())
    builds = [*shown["headline"], *shown["steps"][0]["builds"], *shown["finals"][0]["builds"], *shown["without"]["a"]]
    assert builds == [{"outcome": "OK", "log_ratio": -0.1}] * 4
    assert minimisation_json({"route": None, "reason": "no"}) == {"route": None, "reason": "no"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--margin", "0"), "0 is too small; it must be more than 0"),
        (("--margin", "lots"), "'lots' is not a finite number"),
        (("--rebuilds", "1"), "1 is too small; it must be 2 or more"),
        (("--storage", "none.journal"), "there is no study database at none.journal"),
    ],
)
def test_bad_input_is_one_line(args: tuple[str, ...], message: str, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        done = CliRunner().invoke(cli, ["minimise", "study", *args], prog_name="gpt-search")
    assert done.exit_code == 2 and message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


def test_rejudge_names_an_unknown_metric() -> None:
    done = CliRunner().invoke(cli, ["rejudge", "study", "--metric", "cosine"], prog_name="gpt-search")
    assert done.exit_code == 2 and "'cosine' is not one of l0, l1, l2, lInf, cos" in " ".join(done.stderr.split())
