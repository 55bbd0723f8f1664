import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from gpt_search import Knob, KnobDatabase, Observation, Outcome, parse_expression, simulate
from gpt_search.cli.main import cli


def run(*args: str, columns: int | None = None):
    env = {"COLUMNS": None if columns is None else str(columns)}
    return CliRunner().invoke(cli, ["plan", *args], prog_name="gpt-search", env=env)


@pytest.fixture
def small(tmp_path: Path) -> str:
    """Two closed knobs, those of the example in trtexec's documentation of its order, and an open-ended one."""
    knobs = [
        Knob("conv_lowering", ("on", "off"), "on"),
        Knob("kgen:tiling", ("0", "1", "2"), "2"),
        Knob("algo", (), "-1", open_ended=True, integer=True),
    ]
    path = tmp_path / "small.json"
    path.write_text(KnobDatabase.of("1.0", knobs).to_json())
    return str(path)


@pytest.fixture
def huge(tmp_path: Path) -> str:
    path = tmp_path / "huge.json"
    path.write_text(KnobDatabase.of("1.0", [Knob(f"knob:{i}", ("on", "off"), "off") for i in range(200)]).to_json())
    return str(path)


BOTH = "-conv_lowering=[on|off] -kgen:tiling=[0|1|2]"


def routes(output: str) -> list[str]:
    return [line.split("  ", 1)[1] for line in output.splitlines() if line[:1].isdigit() and "  -" in line]


def test_fast_lists_the_reference_and_single_changes_from_last_knob_to_first(small):
    result = run("--knobs", BOTH, "--database", small, "--strategy", "fast")
    assert result.exit_code == 0, result.output
    assert "2 varying knobs: 6 routes" in result.stdout
    assert "strategy fast: 4 routes in all" in result.stdout
    assert routes(result.stdout) == [
        "-conv_lowering=on -kgen:tiling=2",
        "-conv_lowering=on -kgen:tiling=0",
        "-conv_lowering=on -kgen:tiling=1",
        "-conv_lowering=off -kgen:tiling=2",
    ]


def test_full_runs_the_last_knob_fastest_and_stops_at_the_limit(small):
    result = run("--knobs", BOTH, "--database", small, "--strategy", "full", "--limit", "4")
    assert "first routes" in result.stdout and "all routes" not in result.stdout
    assert routes(result.stdout) == [
        "-conv_lowering=on -kgen:tiling=0",
        "-conv_lowering=on -kgen:tiling=1",
        "-conv_lowering=on -kgen:tiling=2",
        "-conv_lowering=off -kgen:tiling=0",
    ]


def test_the_whole_list_is_called_that(small):
    result = run("--knobs", BOTH, "--database", small, "--strategy", "full", "--limit", "6")
    assert "all routes:" in result.stdout and len(routes(result.stdout)) == 6


def test_2_to_the_200_routes_are_counted_exactly_and_listed_lazily(huge):
    result = run("--knobs", "-*=[*]", "--database", huge, "--strategy", "full", "--limit", "3", "--json")
    report = json.loads(result.stdout)
    assert report["size"] == report["count"] == 2**200
    assert report["log2_size"] == 200.0
    assert [r["changes"].count("=on") for r in report["routes"]] == [200, 199, 199]
    assert not report["complete"] and not report["simulated"]


def test_many_knobs_are_shown_as_changes_unless_asked(huge):
    arguments = ("--knobs", "-*=[*]", "--database", huge, "--strategy", "fast", "--limit", "2")
    short, full = run(*arguments), run(*arguments, "--full-routes")
    assert "2^200 routes" in short.stdout and f"exactly {2**200}" in short.stdout
    assert "0  (the reference route)\n1  -knob:199=on\n" in short.stdout
    assert routes(full.stdout)[1].count("=") == 200


@pytest.mark.parametrize("spec", ["random", "sparse_random:mean=2"])
def test_adaptive_strategies_are_run_on_a_flat_measure_and_that_is_said(huge, spec):
    arguments = ("--knobs", "-*=[*]", "--database", huge, "--strategy", spec, "--limit", "5")
    result = run(*arguments)
    assert "if nothing is faster than the reference" in result.stdout
    assert "0  (the reference route)" in result.stdout
    report = json.loads(run(*arguments, "--json").stdout)
    assert report["simulated"] and report["count"] is None
    assert len({r["route"] for r in report["routes"]}) == len(report["routes"]) == 5
    assert report["routes"][0]["route"] == report["reference"]
    other_seed = json.loads(run(*arguments, "--json", "--seed", "1").stdout)
    assert other_seed["routes"][1:] != report["routes"][1:]


def test_a_drawn_order_is_listed_as_a_study_of_that_seed_goes_through_it(huge):
    space = parse_expression("-*=[*]", KnobDatabase.from_json(Path(huge).read_text()))
    same, orders = Observation(Outcome.OK, 1.0), []
    for seed in (0, 1):
        arguments = ("--knobs", "-*=[*]", "--database", huge, "--strategy", "fast:knobs=shuffled", "--limit", "6")
        result = run(*arguments, "--json", "--seed", str(seed))
        assert result.exit_code == 0, result.stderr
        found = simulate(space, "fast:knobs=shuffled", lambda codes, rng, until: same, trials=5, seed=seed)
        orders.append([r["route"] for r in json.loads(result.stdout)["routes"]])
        assert orders[-1] == [str(space.route(codes)) for codes in found.codes]
    assert orders[0] != orders[1]


def test_mixed_lists_its_first_phase_and_does_not_call_it_all(small):
    report = json.loads(run("--knobs", BOTH, "--database", small, "--strategy", "mixed", "--json").stdout)
    assert len(report["routes"]) == 4 and report["count"] is None and not report["complete"]


def test_without_a_strategy_the_space_is_counted(small):
    result = run("--knobs", "-conv_lowering=[*] -kgen:tiling=1", "--database", small)
    assert result.stdout == "1 varying knobs, 1 pinned: 2 routes\n"


def test_notes_of_the_parser_are_shown(small):
    result = run("--knobs", "-*=[*]", "--database", small, columns=60)
    assert "note: -*=[*]: skips the open-ended knobs algo" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 60


def test_limit_0_lists_nothing(small):
    for spec in ("fast", "random"):
        result = run("--knobs", BOTH, "--database", small, "--strategy", spec, "--limit", "0")
        assert result.exit_code == 0 and "routes:" not in result.stdout


def test_a_limit_beyond_every_number_of_the_machine_lists_all(small):
    result = run("--knobs", BOTH, "--database", small, "--strategy", "full", "--limit", str(10**30))
    assert result.exit_code == 0 and "all routes" in result.stdout


def test_strict_refuses_the_extensions(small):
    result = run("--knobs", "-conv_lowering=[*]", "--database", small, "--strict-trtexec")
    assert result.exit_code == 2 and "column 17" in result.stderr
    assert run("--knobs", "-conv_lowering=[on|off]", "--database", small, "--strict-trtexec").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--knobs", "-conv_lowring=[*]"), "did you mean 'conv_lowering'?"),
        (("--knobs", BOTH, "--strategy", "fats"), "did you mean 'fast'?"),
        (("--knobs", BOTH, "--strategy", "mixed:margn=1"), "did you mean 'margin'?"),
        (("--knobs", BOTH, "--backend", "synthetic"), "--database and --backend are both given"),
    ],
)
def test_bad_input_is_one_line_with_the_nearest_name(small, arguments, message):
    result = run(*arguments, "--database", small)
    assert result.exit_code == 2
    assert message in result.stderr and result.stderr.count("\n") == 1


def test_a_database_that_cannot_be_read(tmp_path):
    missing = run("--knobs", "-x=[*]", "--database", str(tmp_path / "none.json"))
    assert missing.exit_code == 2 and "none.json" in missing.stderr and "No such file" in missing.stderr
    (tmp_path / "bad.json").write_text("{")
    bad = run("--knobs", "-x=[*]", "--database", str(tmp_path / "bad.json"))
    assert bad.exit_code == 2 and "bad.json: the knob database is not JSON" in bad.stderr


def test_the_default_backend_is_onnxruntime():
    result = run("--knobs", "-*=[*]", "--strategy", "fast", "--limit", "1", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["knobs"] > 100


@given(values=st.lists(st.integers(2, 5), min_size=1, max_size=6), limit=st.integers(0, 12))
def test_json_agrees_with_the_space(tmp_path_factory, values, limit):
    database = KnobDatabase.of("1", [Knob(f"k{i}", tuple("abcde"[:n]), "a") for i, n in enumerate(values)])
    path = tmp_path_factory.mktemp("plan") / "db.json"
    path.write_text(database.to_json())
    space = parse_expression("-*=[*]", database)
    report = json.loads(
        run("--knobs", "-*=[*]", "--database", str(path), "--strategy", "full", "--limit", str(limit), "--json").stdout
    )
    assert report["size"] == space.size
    assert report["complete"] == (limit >= space.size)
    assert [r["route"] for r in report["routes"]] == [str(space.route_at(i)) for i in range(min(limit, space.size))]


def test_a_seed_is_the_same_kind_of_number_as_in_tune(small):
    result = run("--knobs", BOTH, "--database", small, "--strategy", "random", "--seed", "-1")
    assert result.exit_code == 2 and "-1 is too small; it must be 0 or more" in result.stderr


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def count(self, space): return 1 / 0", "strategy S failed in count"),
        ("def count(self, space): return 'many'", "strategy S counted 'many' routes"),
        ("def routes(self, space): yield 1 / 0", "strategy S failed in routes"),
        ("def routes(self, space): yield space.default + 9", "strategy S: code 9 for knob 'conv_lowering'"),
        ("def routes(self, space): yield 'x'", "strategy S: a code vector of this space"),
    ],
)
def test_a_strategy_that_fails_is_named(small, tmp_path, body, message):
    file = tmp_path / "s.py"
    file.write_text(f"class S:\n    def propose(self, space, history, streams): return None\n    {body}\n")
    result = run("--knobs", BOTH, "--database", small, "--strategy", f"{file}:S")
    assert result.exit_code == 1 and result.stderr.startswith("error: " + message), result.output
    assert "unexpected" not in result.stderr


def test_the_help_names_its_numbers_as_other_commands_do():
    shown = run("--help").stdout
    assert "--limit N" in shown and "--seed N" in shown and "INTEGER" not in shown
