import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpt_search.cli.main import cli
from gpt_search.domain.digest import digest_of_file
from gpt_search.workloads.catalogue import workload_names

SMALL = ("--option", "layers=1", "--option", "hidden=16", "--option", "heads=2", "--option", "vocabulary=50")


def run(*args: str):
    return CliRunner().invoke(cli, ["workload", *args], prog_name="gpt-search")


def test_a_model_is_written_that_onnx_reads(tmp_path: Path):
    import onnx

    out = tmp_path / "bert.onnx"
    result = run("bert", str(out), *SMALL)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[0] == f"wrote {out} ({out.stat().st_size / 1e6:.1f} MB)"
    onnx.checker.check_model(onnx.load(out))


def test_equal_options_write_equal_files_and_json_tells_them_apart(tmp_path: Path):
    reports = [
        json.loads(run("bert", str(tmp_path / name), *SMALL, "--option", seed, "--json").stdout)
        for name, seed in (("a.onnx", "seed=1"), ("b.onnx", "seed=1"), ("c.onnx", "seed=2"))
    ]
    digests = [r["sha256"] for r in reports]
    assert digests[0] == digests[1] != digests[2]
    assert digests[0] == digest_of_file(tmp_path / "a.onnx")
    assert reports[0]["shapes"]["input_ids"].startswith("1x")


def test_without_a_file_the_options_are_listed():
    assert "layers=" in run().stdout
    assert {w["name"] for w in json.loads(run("--json").stdout)["workloads"]} == set(workload_names())
    options = json.loads(run("bert", "--json").stdout)["options"]
    assert "hidden" in [o["name"] for o in options]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("brt", "x.onnx"), "did you mean 'bert'?"),
        (("bert", "x.onnx", "--option", "layrs=1"), "did you mean 'layers'?"),
        (("bert", "x.onnx", "--option", "layers"), "--option 'layers' is not of the form KEY=VALUE"),
        (("bert", "x.onnx", "--option", "layers=1", "--option", "layers=2"), "sets 'layers' twice"),
        (("bert", "x.onnx", "--option", "layers=one"), "not a whole number"),
        (("bert", "--option", "layers=1"), "no file to write"),
        (("bert", "no/such/folder/x.onnx", *SMALL), "no/such/folder"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(tmp_path, monkeypatch, args, message):
    monkeypatch.chdir(tmp_path)
    result = run(*args)
    assert result.exit_code == 2
    assert message in result.stderr and result.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
