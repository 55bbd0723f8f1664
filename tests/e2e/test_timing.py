"""What is timed, live on tiny models: tail quantiles, throughput with streams, shape points of a dynamic model."""

import functools
import itertools
import json
import math

import numpy as np
import pytest
from e2e_runs import FLOAT, inside, save
from onnx import helper

import gpt_search.run.setup
from gpt_search.execution.describe import describe_backend

KNOBS = "-session:graph_level=[all|disable] -session:intra_threads=1"


@pytest.fixture(autouse=True, scope="module")
def described_once():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpt_search.run.setup, "describe_backend", functools.cache(describe_backend))
        yield


@pytest.fixture
def tune(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    weights = {f"w{i}": (rng.standard_normal((16, 16)) / 4).astype(np.float32) for i in range(2)}
    nodes = [helper.make_node("MatMul", ["w0", "w1"], ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    open_ = (FLOAT, ["batch", 16])
    save(tmp_path / "open.onnx", nodes, {"x": open_}, {"y": open_}, weights)  # folded, or not: two engines

    def tune(*args, code=0):
        command = ["tune", "open.onnx", "--strategy", "full", "--no-confirm", "--knobs", KNOBS, "--trials", "1"]
        result = inside(*command, *args)
        assert result.exit_code == code, result.output
        return result.stderr if code else json.loads(result.stdout) if "--json" in args else result.stdout

    return tune


def records(folder):
    (file,) = folder.glob("*.records/*.jsonl")
    return [json.loads(line)["evaluation"] for line in file.read_text().splitlines()]


def test_a_dynamic_model_at_two_points(tune, tmp_path):
    found = tune("--json", "--point", "few@3 x=2x16", "--point", "many x=64x16")
    reference, other = records(tmp_path)
    assert len(reference["losses"]) == 4  # two pairs at each point
    rounds = other["rounds"]
    assert [r.get("point", 0) for r in rounds] == [0, 1] * (len(rounds) // 2)
    logs = other["point_log_ratios"]
    assert other["log_ratio"] == pytest.approx((3 * logs[0] + logs[1]) / 4)
    by_point = [
        np.median([np.median(r["reference_ms"]) for r in reference["rounds"] if r.get("point", 0) == p]) for p in (0, 1)
    ]
    expected = math.exp((3 * math.log(by_point[0]) + math.log(by_point[1])) / 4)
    assert reference["latency_ms"] == pytest.approx(expected)
    firsts = [[r["reference_first"] for r in rounds if r.get("point", 0) == p] for p in (0, 1)]
    assert all(a != b for order in firsts for a, b in itertools.pairwise(order))  # alternates at each point
    if found["nominees"][0]["trial"]:
        assert set(found["nominees"][0]["points"]) == {"few", "many"}
    again = tune("--point", "few@2 x=2x16", "--point", "many x=64x16", code=2)
    assert "exists with other settings" in " ".join(again.split())


def test_throughput_with_two_streams(tune, tmp_path):
    text = tune("--shape", "x=2x16", "--timing", "throughput", "--streams", "2")
    assert "inferences/s, 2 streams" in " ".join(text.split())
    reference = records(tmp_path)[0]
    pooled = [x for r in reference["rounds"] for x in r["reference_ms"]]
    assert reference["latency_ms"] == pytest.approx(np.mean(pooled))
    assert all(len(r["candidate_ms"]) >= 8 for r in reference["rounds"])


def test_a_tail_quantile_pools_rounds(tune, tmp_path):
    found = tune("--json", "--shape", "x=2x16", "--timing", "p99")
    assert found["timing"] == {"statistic": "p99", "streams": 1, "host_copies": False}
    pooled = [x for r in records(tmp_path)[0]["rounds"] for x in r["reference_ms"]]
    assert len(pooled) >= 5000
    assert found["reference_ms"] == pytest.approx(np.quantile(pooled, 0.99, method="median_unbiased"))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--timing", "p99", "--streams", "2"), "--streams 2 with --timing p99"),
        (("--host-copies",), "--host-copies: this backend has no copies"),
        (("--timing", "p95"), "'p95' is not one of median, mean, p90, p99, throughput"),
        (("--point", "a y=2x16"), "--point 'a': --shape names input 'y'"),
    ],
)
def test_what_cannot_be_timed_is_refused(tune, args, message):
    assert message in " ".join(tune("--shape", "x=2x16", *args, code=2).split())
