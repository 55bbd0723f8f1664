"""A gain that is there on any machine is found, confirmed on fresh builds, and exported."""

import contextlib
import json
from hashlib import sha256

import numpy as np
import onnxruntime
import pytest
from e2e_runs import UNOPTIMISED, foldable, inside, run

from gpt_search.backends.onnxruntime import OnnxRuntimeBackend
from gpt_search.domain.workload import Workload

STUDY = "gain"


def here(folder, *args, code=0):
    """The command in this process, in that folder."""
    with contextlib.chdir(folder):
        done = inside(*args)
    assert done.exit_code == code, done.output
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("gain")
    foldable(path / "model.onnx")
    (path / "slow.py").write_text(UNOPTIMISED)
    run(
        *("tune", "model.onnx", "--study", STUDY, "--backend", "slow.py:Unoptimised", "--strategy", "full"),
        *("--knobs", "-session:graph_level=[disable|basic] -session:intra_threads=1", "--no-confirm"),
        cwd=path,
    )
    return path


@pytest.fixture(scope="module")
def confirmed(folder):
    return run("confirm", STUDY, "--top", "1", "--rebuilds", "2", cwd=folder)


def test_before_confirming_an_export_says_so(folder):
    done = here(folder, "export", STUDY, "--as", "route", "early.txt")
    said = " ".join(done.stdout.split())
    assert "trial 1" in said and "not confirmed: run `gpt-search confirm` first" in said
    done = here(folder, "export", STUDY, "--as", "engine", "early.engine", code=2)
    assert "has no confirmed build to ship; run `gpt-search confirm gain" in " ".join(done.stderr.split())
    assert not list(folder.glob("early.engine*"))


def test_two_rebuilds_are_preliminary(folder, confirmed):
    text = " ".join(confirmed.stdout.split())
    assert text.startswith("confirmed trial 1: ") and "2 builds, preliminary: fewer than 5" in text
    assert "by the search's own timing" in text and "than confirmed" in text and "accuracy cos loss" in text
    assert "verdict faster than the default, at a one-sided level of 2.5 %" in text and "keep the default" not in text
    assert "route -session:graph_level=basic -session:intra_threads=1" in text
    assert max(map(len, confirmed.stdout.splitlines())) <= 80
    assert confirmed.stderr.splitlines() == [f"confirming: build {i}/2 (stage 2, trial 1)" for i in (1, 2)]
    found = json.loads(here(folder, "show", STUDY, "--json").stdout)["confirmations"]
    assert len(found) == 1 and found[0]["preliminary"] is True and found[0]["verdict"] == "FASTER"
    assert found[0]["speedup"]["low"] > 1 and found[0]["speedup"]["n"] == 2
    assert [e["outcome"] for e in found[0]["stage_2"]] == ["OK", "OK"]
    assert all("rounds" not in e for e in found[0]["stage_2"])
    shown = here(folder, "show", STUDY).stdout
    assert "gpt-search export gain" in shown and "--as engine OUT" in shown


def test_tune_again_keeps_the_confirmation_and_says_its_number_of_trials(folder, confirmed):
    args = ["tune", "model.onnx", "--study", STUDY, "--backend", "slow.py:Unoptimised", "--strategy", "full", "--json"]
    args += ["--knobs", "-session:graph_level=[disable|basic] -session:intra_threads=1"]
    done = run(*args, cwd=folder)
    found = json.loads(done.stdout)
    assert len(found["confirmations"]) == 1 and found["confirmation"] == found["confirmations"][0]
    assert found["confirmation"]["trials"] == found["trials"] == 1
    assert "confirming" not in done.stderr


def test_an_exported_engine_loads_again_and_computes_the_same(folder, confirmed):
    args = ("export", STUDY, "--as", "engine", "best.engine", "--processes", "2", "--json")
    done = here(folder, *args)
    told = json.loads(done.stdout)
    (latest,) = json.loads(here(folder, "show", STUDY, "--json").stdout)["confirmations"]
    ratios = [e["log_ratio"] for e in latest["stage_2"]]
    build = ratios.index(max(ratios))  # of two builds the slower one
    assert told["trial"] == 1
    assert told["note"] == f"confirmed; build {build + 1} of 2, reloaded and within tolerance"
    data = (folder / "best.engine").read_bytes()
    assert told["bytes"] == len(data) and sha256(data).hexdigest() == latest["stage_2"][build]["engine"]
    # The file has two intervals: the route's, over builds, and its own, over processes.
    facts = json.loads((folder / "best.engine.json").read_text())
    assert facts == told["facts"] and told["sidecar"] == "best.engine.json"
    assert facts["route_speedup"] == latest["speedup"] and facts["file_speedup"]["n"] == 2
    assert facts["file_speedup"]["estimate"] > 1.1 and facts["accuracy"]["loss"] < facts["accuracy"]["tolerance"]
    shown = " ".join(here(folder, "export", STUDY, "--as", "engine", "b", "--processes", "2").stdout.split())
    assert "2 builds): what the route gives when it is built" in shown
    assert "2 processes): what this build gives when it is loaded" in shown
    x = np.random.default_rng(1).standard_normal((1, 96)).astype(np.float32)
    engine = OnnxRuntimeBackend().load(data, Workload(folder / "model.onnx", {"x": (1, 96)}))
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(engine.infer({"x": x})["y"], session.run(["y"], {"x": x})[0], rtol=1e-3, atol=1e-4)
    engine.close()


def test_an_exported_route_is_the_winner_s(folder, confirmed):
    done = here(folder, "export", STUDY, "--as", "route", "best.route")
    assert (folder / "best.route").read_text() == "-session:graph_level=basic -session:intra_threads=1\n"
    assert done.stdout == "best.route: route of trial 1, 52 bytes (confirmed)\n"
    # It is an expression again: everything pinned.
    planned = here(folder, "plan", "--knobs", "@best.route", "--json")
    assert json.loads(planned.stdout)["size"] == 1


def test_exported_records_are_every_evaluation_with_its_samples(folder, confirmed):
    told = json.loads(here(folder, "export", STUDY, "--as", "record", "all.jsonl", "--json").stdout)
    lines = [json.loads(line) for line in (folder / "all.jsonl").read_text().splitlines()]
    assert len(lines) == 3 and told["note"].startswith("3 records")  # the reference, one trial, the confirmation
    assert '"candidate_ms"' in (folder / "all.jsonl").read_text()


def test_what_exists_is_not_written_over(folder):
    (folder / "mine").write_text("precious")
    done = here(folder, "export", STUDY, "--as", "record", "mine", code=2)
    assert done.stderr == "error: mine exists already; choose another name, or remove it\n" and done.stdout == ""
    assert (folder / "mine").read_text() == "precious"
