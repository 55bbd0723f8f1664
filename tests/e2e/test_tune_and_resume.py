"""One study of a small transformer from the first command to the last, each a process of its own."""

import contextlib
import json
import re
import shlex

import pytest
from e2e_runs import inside, run

from gpt_search.workloads.catalogue import write_workload

KNOBS = "-session:graph_level=[all|disable] -opt:GeluFusionL1=[*] -opt:LayerNormFusionL1=[*] -session:intra_threads=1"
STUDY = "bert-random-0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("study")
    write_workload("bert", path / "bert.onnx", layers=2, hidden=64, heads=2, sequence=16, vocabulary=100)
    return path


def tune(folder, *more):
    return run(
        *("tune", "bert.onnx", "--shape", "input_ids=1x16", "--strategy", "random", "--trials", "4", "--knobs", KNOBS),
        *more,
        cwd=folder,
    )


@pytest.fixture(scope="module")
def first(folder):
    return tune(folder, "--json", "--no-confirm")


def show(*args, folder):
    with contextlib.chdir(folder):
        done = inside("show", STUDY, *args)
    assert done.exit_code == 0 and done.stderr == "", done.output
    return done.stdout


def record(folder):
    return (folder / "gpt_search.records" / f"{STUDY}.jsonl").read_bytes()


def test_tune_gives_json_on_stdout_and_progress_on_stderr(first):
    found = json.loads(first.stdout)
    assert found["study"] == STUDY
    assert (found["trials"], found["knobs"], found["routes"], found["unfinished"]) == (4, 3, 8, 0)
    assert sum(found["outcomes"].values()) == 4
    assert found["reference_ms"] > 0 and found["reference_accuracy"]["loss"] < 1e-3
    assert 2 <= found["engines"] <= 5  # graph_level and the two fusions make different graphs
    assert found["confirmation"] is None and found["confirmations"] == []
    assert all(n["route"].count("-") == 4 and n["speedup"] > 0 for n in found["nominees"])
    lines = first.stderr.splitlines()
    assert lines[0] == f"study {STUDY}: 3 knobs; the reference comes first"
    assert re.fullmatch(r"reference: [0-9.]+ ms", lines[1])
    for number, line in enumerate(lines[2:], 1):
        assert re.fullmatch(
            rf"trial {number}/4: \d+\.\d+x +best \d+\.\d+x \(#\d\)  ok \d+%  used {25 * number}%  \d+:\d\d left", line
        )
    assert len(lines) == 6 and max(map(len, lines)) <= 80


def test_the_same_command_again_finds_the_study_finished(folder, first):
    before = record(folder)
    again = tune(folder, "--json", "--no-confirm")
    assert json.loads(again.stdout) == json.loads(first.stdout)
    assert again.stderr == f"study {STUDY}: 3 knobs; going on where it stopped\n"
    assert record(folder) == before


def test_resume_with_more_trials_continues(folder, first):
    before = record(folder)
    done = run("resume", STUDY, "--trials", "6", "--json", cwd=folder)
    found = json.loads(done.stdout)
    assert found["trials"] == 6 and found["reference_ms"] == json.loads(first.stdout)["reference_ms"]
    assert record(folder).startswith(before)
    assert re.findall(r"^trial (\d)/6", done.stderr, re.MULTILINE) == ["5", "6"]
    # Without a budget of its own it keeps the last one, which is spent.
    assert json.loads(run("resume", STUDY, "--json", cwd=folder).stdout) == found
    assert json.loads(show("--json", folder=folder)) == found


def test_show_is_text_that_fits_and_ends_with_what_to_do(folder, first):
    found = json.loads(show("--json", folder=folder))
    lines = show(folder=folder).splitlines()
    assert max(map(len, lines)) <= 80
    labels = [line[:11].strip() for line in lines if line[:11].strip()]
    assert labels[:8] == ["study", "model", "space", "trials", "engines", "reference", "noise", "best"]
    best = found["nominees"][0]
    if best["speedup"] > 1:
        assert labels[8:] == ["route", "next"]
        command = shlex.split(" ".join(lines).partition("next ")[2].replace("\\", ""))
        assert command == ["gpt-search", "confirm", STUDY, "--storage", "./gpt_search.journal"]
    else:
        assert labels[8:] == [] and lines[-1] == "best       the default: no route was timed faster"


def test_only_the_first_nominees_are_shown_when_asked(folder, first):
    assert len(json.loads(show("--top", "1", "--json", folder=folder))["nominees"]) == 1


def test_optuna_opens_the_same_file(folder, first):
    import optuna

    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(folder / "gpt_search.journal"))
    )
    study = optuna.load_study(study_name=STUDY, storage=storage)
    assert {"session:graph_level", "opt:GeluFusionL1", "opt:LayerNormFusionL1"} == set(study.trials[1].params)
    assert all(t.state.is_finished() for t in study.trials)
