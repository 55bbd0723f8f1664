"""Decision quality: how often a search's pick is worth at least 90 % of the best, against trtexec's way of timing.

Run: python benchmarks/decision_quality.py [--seconds 60] [--repeats 8] [--strategies mixed:margin=auto tpe]

One CPU workload (a small BERT encoder with seeded weights, ONNX Runtime), one space, equal wall time. The arms:

- "trtexec": the protocol of trtexec's tuner around the same backend. Strategy `mixed` with its rule (any run below the
  one baseline run counts as a gain); a fresh process for every route; 200 ms of warm-up, then 3 s of inference, whose
  mean is the route's time; the same accuracy gate; the smallest mean among the eligible routes wins.
- ours: `tune` as it comes, with each of the strategies named. Its wall time counts from the call to the answer, all
  preparation included; trtexec's arm gets as much, and its preparation is free.

Every repeat shuffles the knobs, the order that `mixed` walks in, equally for all arms. Afterwards each route that an
arm picked is confirmed alike: pairs of fresh builds against the reference, whose mean log-ratio is the route's gain.
"Best available" is the largest gain among all picks and that of a search of --long seconds. Printed by arm: the share
of repeats whose pick reaches 90 % of that, with a 95 % Clopper-Pearson interval, the mean share reached, and routes
decided per hour.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from gpt_search.accuracy.gate import judge
from gpt_search.domain.budget import Budget
from gpt_search.domain.history import History
from gpt_search.domain.outcome import Observation, Outcome
from gpt_search.domain.route import Route
from gpt_search.domain.streams import Streams, seed_from
from gpt_search.execution.launcher import Worker, WorkerFailed
from gpt_search.execution.rounds import CANDIDATE, Side
from gpt_search.run.config import TuneConfig
from gpt_search.run.rebuild import every_round, log_ratio, rebuild_pair
from gpt_search.run.setup import Prepared, prepare
from gpt_search.run.tune import tune
from gpt_search.search.discovery import load_strategy
from gpt_search.search.loop import Trial, run_loop
from gpt_search.workloads.catalogue import write_workload

SHARE = 0.9
BUILDS = 5
"""Pairs of fresh builds that a pick's gain is measured with."""

KNOBS = (
    "-model:quantize_dynamic=[off|u8|s8|s8_reduced|s8_per_channel]",
    "-opt:SkipLayerNormFusion=[*]",
    "-opt:BiasSkipLayerNormFusion=[*]",
    "-opt:LayerNormFusionL2=[*]",
    "-opt:AttentionFusion=[*]",
    "-opt:BiasGeluFusion=[*]",
    "-opt:GeluFusionL2=[*]",
    "-opt:GemmActivationFusion=[*]",
    "-opt:ConstantFolding=[*]",
    "-opt:MatMulAddFusion=[*]",
    "-opt:TransposeOptimizer=[*]",
    "-session:gelu_approximation=[*]",
    "-session:graph_level=[all|extended|basic]",
    "-session:prepacking=[*]",
    "-session:mem_pattern=[*]",
    "-session:cpu_arena=[*]",
    "-session:dynamic_block_base=[0|4]",
    "-input:free_dims=[*]",
)


@dataclass
class Arm:
    """What the repeats of one way of searching gave: the picks, and how many routes were decided in what time."""

    picks: list[Route] = field(default_factory=list)
    routes: int = 0
    seconds: float = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--long", type=float, default=600.0, help="seconds of the search that looks for the best")
    parser.add_argument("--strategies", nargs="+", default=["mixed:margin=auto", "tpe"])
    arguments = parser.parse_args()
    arms = {name: Arm() for name in ("trtexec", *arguments.strategies)}
    with tempfile.TemporaryDirectory() as folder:
        config = _config(Path(folder), arguments.seconds)
        for number in range(arguments.repeats):
            shuffled = Streams(seed_from("decision", number)).trial(0).permutation(len(KNOBS))
            knobs = " ".join(KNOBS[i] for i in shuffled.tolist())
            for strategy in arguments.strategies:
                study = f"{strategy}-{number}"
                one = replace(config, knobs=knobs, strategy=strategy, seed=number, study=study)
                wall = _ours(one, arms[strategy])
            _trtexec(prepare(replace(config, knobs=knobs, strategy="mixed", seed=number)), wall, arms["trtexec"])
            print(f"repeat {number} done", flush=True)
        long = Arm()
        _ours(replace(config, budget=Budget(seconds=arguments.long), study="long", seed=999), long)
        gains = _gains(prepare(config), {str(r): r for arm in (*arms.values(), long) for r in arm.picks})
    best = max(gains.values())
    print(f"best available: {100 * np.expm1(best):+.1f} % ({len(gains)} routes confirmed, {BUILDS} builds each)")
    rate = {name: 3600 * arm.routes / arm.seconds for name, arm in arms.items()}
    for name, arm in arms.items():
        shares = np.array([gains[str(r)] / best for r in arm.picks])
        good = int((shares >= SHARE).sum())
        interval = binomtest(good, len(shares)).proportion_ci(0.95)
        print(
            f"{name:20} quality {good}/{len(shares)} ({interval.low:.0%} to {interval.high:.0%}), mean share "
            f"{shares.mean():.2f}, {rate[name]:5.0f} routes an hour ({rate[name] / rate['trtexec']:.1f} x trtexec's)"
        )


def _config(folder: Path, seconds: float) -> TuneConfig:
    model = write_workload("bert", folder / "bert.onnx", layers=2, hidden=96)
    return TuneConfig(
        model=model.model,
        shapes=model.shapes,
        knobs=" ".join(KNOBS),
        budget=Budget(seconds=seconds),
        tolerances=("0.001",),
        storage=str(folder / "studies.journal"),
    )


def _ours(config: TuneConfig, arm: Arm) -> float:
    """One study; returns its wall time in s."""
    began = time.monotonic()
    summary = tune(config)
    wall = time.monotonic() - began
    arm.routes += summary.trials
    arm.seconds += wall
    arm.picks.append(Route.parse(summary.nominees[0].route) if summary.nominees else Route(()))
    return wall


def _trtexec(prepared: Prepared, seconds: float, arm: Arm) -> None:
    """One search by trtexec's protocol for as many seconds."""
    space, history = prepared.space, History(prepared.space)
    began = time.monotonic()
    run_loop(
        space,
        load_strategy("mixed"),
        history,
        Streams(prepared.seed),
        Budget(seconds=seconds),
        lambda trial: _fresh_process(prepared, trial),
        clock=lambda: time.monotonic() - began,
    )
    arm.seconds += time.monotonic() - began
    arm.routes += len(history) - 1
    fastest = int(np.nanargmin(np.where(history.feasible, history.value, np.nan)))
    arm.picks.append(space.route(history.codes[fastest]))


def _fresh_process(prepared: Prepared, trial: Trial) -> Observation:
    """Build, gate and 3 s of inference in a process of its own; the mean is the value."""
    settings = prepared.evaluator_settings()
    route = prepared.space.route(trial.codes)
    try:
        with Worker(settings.worker_spec()) as worker:
            fields = {"slot": CANDIDATE, "route": [list(i) for i in route.items_in_order], "seed": 0}
            worker.ask("build", fields, timeout_s=settings.timeout_build_s, phase="build")
            asked: Mapping[str, object] = {"slot": CANDIDATE, "atol": 1e-5, "rtol": 1e-5}
            losses = worker.ask("gate", asked, timeout_s=settings.timeout_run_s, phase="gate").fields["losses"]
            violation = judge(losses, prepared.tolerances)
            if violation >= 0:
                return Observation(Outcome.ACCURACY, None, violation)
            side = Side(worker, CANDIDATE)
            side.time(-1, replace(prepared.protocol, round_seconds=0.2), 0, settings.timeout_run_s)
            block = side.time(0, replace(prepared.protocol, round_seconds=3.0), 0, settings.timeout_run_s)
    except WorkerFailed as failed:
        return Observation(failed.outcome)
    return Observation(Outcome.OK, float(np.mean(block.samples_ms)), violation)


def _gains(prepared: Prepared, routes: Mapping[str, Route]) -> dict[str, float]:
    """Each route's gain over pairs of fresh builds, -log(latency / reference); 0 for the reference and a failure."""
    protocol, found = every_round(prepared.protocol), {}
    reference = prepared.space.reference
    for number, (name, route) in enumerate(routes.items()):
        changed = dict(route.items_in_order) != dict(reference.items_in_order) and route.items_in_order
        pairs = [
            rebuild_pair(prepared, protocol, route, 1.0, seed_from("gain", number, i))
            for i in range(BUILDS if changed else 0)
        ]
        feasible = pairs and all(p.outcome is Outcome.OK for p in pairs)
        found[name] = -float(np.mean([log_ratio(p) for p in pairs])) if feasible else 0.0
    return found


if __name__ == "__main__":
    main()
