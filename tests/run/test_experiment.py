from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_experiments import write

from gpt_search import InputError
from gpt_search.run.experiment import json_schema, load_experiment

ROOT = Path(__file__).resolve().parents[2]
PLANTED = 'kind = "planted"\nfamily = "sparse"\nseeds = [1, 2]\nknobs = 12'


def test_a_file_becomes_tasks_strategies_and_cells(tmp_path: Path) -> None:
    experiment = load_experiment(write(tmp_path))
    assert [t.name for t in experiment.tasks] == ["sparse-1", "sparse-2"]
    assert [s.name for s in experiment.strategies] == ["random", "mixed:margin=0.02"]
    cells = list(experiment.cells())
    assert len(cells) == len({experiment.seed_of(c) for c in cells}) == 8
    assert [c.seed for c in cells] == [0] * 4 + [1] * 4
    assert experiment.checkpoints == {"builds": (4, 12)} and experiment.tested == (12,)


def test_seeds_follow_from_coordinates_not_from_order(tmp_path: Path) -> None:
    one = load_experiment(write(tmp_path))
    other = load_experiment(write(tmp_path, ("seeds = 2", "seeds = [7, 1]"), ("[1, 2]", "[2, 1]")))
    shared = set(one.cells()) & set(other.cells())
    assert len(shared) == 4 and all(one.seed_of(c) == other.seed_of(c) for c in shared)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("seeds = 2", "seed = 2"), r"\[experiment\]: there is no key 'seed'; did you mean 'seeds'"),
        (("seeds = 2\n", ""), r"\[experiment\]: 'seeds' is missing"),
        (("seeds = 2", "seeds = [3, 3]"), "seeds has 3 twice"),
        (("seeds = 2", "seeds = []"), "empty list"),
        (("seeds = 2", "seeds = [-1]"), "a seed is 0 or more"),
        (("seeds = 2", "seeds = 0"), "seeds is 0; it must be a count"),
        (("seeds = 2", f"seeds = [{2**63}]"), r"a seed is 0 or more, and below 2\^63"),
        (("seeds = 2", f"seeds = {{ count = 2, first = {2**63 - 1} }}"), r"below 2\^63"),
        (("{ margin = 0.02 }", "3"), "options is 3; it must be a table of"),
        (("seeds = 2", "seeds = true"), "seeds is True; it must be a count"),
        (("seeds = 2", "seeds = { cont = 3 }"), "no key 'cont'; did you mean 'count'"),
        (("{ builds = 12 }", "{ builds = 0 }"), "budget.builds is 0"),
        (("{ builds = 12 }", "{ seconds = 0 }"), "budget.seconds is 0"),
        (("{ builds = 12 }", "{ bilds = 12 }"), "budget: there is no key 'bilds'; did you mean 'builds'"),
        (("{ builds = 12 }", "{}"), "budget is empty"),
        (("[4, 12]", "[4, 13]"), "13 builds, more than the budget of 12"),
        (("[4, 12]", "[0, 12]"), "0 builds; a budget is more than 0"),
        (("[4, 12]", "[4, 4]"), "4 builds twice"),
        (("[4, 12]", "[4.5]"), "whole numbers"),
        (("[4, 12]", '"all"'), "budgets is 'all'; it must be a list"),
        (('"small"', '"a/b"'), "no slashes"),
        (('"small"', r'"\u001b[31mred"'), "no control characters"),
        (("seeds = [1, 2]", 'seed = 1\nname = "a/b"'), "name is 'a/b'; it must be one line of at most 100 characters"),
        (("seeds = 2", f"seeds = {'[' * 100_000}"), "nested too deeply"),
        (("seeds = 2", "seeds = 1000000"), "4,000,000 cells"),
        (("seeds = 2", f"seeds = {10**12}"), "seeds is a count of 1,000,000,000,000; an experiment has at most"),
        (("seeds = 2", f"seeds = {{ count = {10**30} }}"), "seeds is a count of 1,0.*; an experiment has at most"),
        (('"planted"', '"plantd"'), "task 1: unknown kind 'plantd'; did you mean 'planted'"),
        (('kind = "planted"\n', ""), "task 1: 'kind' is missing"),
        (("family", "famly"), r"task 1 \(planted\): there is no key 'famly'; did you mean 'family'"),
        (('"sparse"', '"sparce"'), "unknown landscape family 'sparce'; did you mean 'sparse'"),
        (("knobs = 12", "knobs = 2"), "6 to 4000 knobs, not 2"),
        (("[1, 2]", "[1, 1]"), "seeds has 1 twice"),
        (("[1, 2]", "[]"), "empty list"),
        (("seeds = [1, 2]\n", ""), "give either seed"),
        ((PLANTED, 'kind = "table"\nfile = "none.jsonl"'), "there is no table"),
        ((PLANTED, 'kind = "table"\nfile = 3'), r"file is 3; it must be a path, as text$"),
        (
            (PLANTED, 'kind = "live"\nname = "x"\nworkload = "bert"\nshapes = { x = [4, 0] }'),
            r"shapes\.x is 0; input should be greater",
        ),
        (
            (PLANTED, 'kind = "live"\nname = "x"\nworkload = "bert"\nshapes = ["x=4"]'),
            r"shapes is \['x=4'\]; it must be a table of keys and values",
        ),
        (
            (PLANTED, 'kind = "live"\nname = "x"\nworkload = "bert"\nprotocol = { alpha = "big" }'),
            "alpha is 'big'; it must be a number",
        ),
        (
            (PLANTED, 'kind = "live"\nname = "x"\nworkload = "bert"\nprotocol = { timing = "p95" }'),
            "'p95'",
        ),
        (("margin =", "name ="), "has no option 'name'"),
        ((PLANTED, 'kind = "live"\nname = "x"'), "give one of model, workload and public, not none"),
        ((PLANTED, 'kind = "live"\nname = "x"\nmodel = "no.onnx"'), "no such file"),
        ((PLANTED, 'kind = "live"\nname = "x"\nworkload = "bart"'), "unknown workload 'bart'; did you mean 'bert'"),
        ((PLANTED, 'kind = "live"\nname = "x"\nworkload = "bert"\nbackend = "tensort"'), "did you mean 'tensorrt'"),
        (
            (PLANTED, 'kind = "live"\nname = "x"\nworkload = "bert"\nprotocol = { round = 1 }'),
            "unknown setting 'round'",
        ),
        (('"random"\n\n[[', '"randm"\n\n[['), "strategy 1: unknown strategy 'randm'; did you mean 'random'"),
        (('"random"\n\n[[', '"mixed:margin=0.02"\n\n[['), "two strategies are named 'mixed:margin=0.02'"),
        (("margin =", "margn ="), "has no option 'margn'; did you mean 'margin'"),
        (('control = "random"', 'control = "rndom"'), "did you mean 'random'"),
        (('control = "random"', 'control = "random"\nalpha = 1.5'), "alpha is 1.5"),
        (('control = "random"', "budgets = [5]"), "5 builds, which is not among"),
        (("[statistics]", "[statistic]"), "no key 'statistic'; did you mean 'statistics'"),
        (("seeds = 2", "seeds = = 2"), "is no TOML"),
        (("[[task]]", "[task]"), r"\[task\]: write \[\[task\]\], in double brackets, before every task"),
        (("[[task]]", "[[tusk]]"), "there is no key 'tusk'; did you mean 'task'"),
        (("[experiment]", "[[experiment]]"), r"\[experiment\]: it must be a table of keys and values"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_before_anything_runs(
    tmp_path: Path, change: tuple[str, str], expected: str
) -> None:
    path = write(tmp_path, change)
    with pytest.raises(InputError, match=expected) as raised:
        load_experiment(path)
    assert str(raised.value).startswith(str(path)) and "\n" not in str(raised.value)


def test_a_missing_section_is_named_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    for text, missing in (
        ("", r"no section \[experiment\]"),
        ('[experiment]\nname = "e"\nseeds = 1\nbudget = { builds = 1 }\n', r"no section \[\[task\]\]"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=missing):
            load_experiment(path)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load_experiment(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        load_experiment(tmp_path / "bytes.toml")


def test_the_schema_is_that_of_the_file() -> None:
    schema = json_schema()
    json.dumps(schema)
    assert set(schema["properties"]) == {"experiment", "task", "strategy", "statistics"}
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.toml")), ids=lambda p: p.stem)
def test_shipped_experiments_are_right(path: Path) -> None:
    assert list(load_experiment(path).cells())
