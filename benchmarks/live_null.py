"""Live A/A studies: a real model on ONNX Runtime, tuned over knobs that all do nothing, and confirmed.

Run: python benchmarks/live_null.py [--studies 20] [--trials 12] [--rebuilds 5]   (about half an hour)

The model is magika's file-type classifier, from its PyPI package. Whatever a study finds is noise: a "faster" is a
false one, and the search's claim is its optimism. Prints each study as it ends, then the count of verdicts with a 95 %
Clopper-Pearson interval, the mean claim, the mean headline with its standard error, and the naive claim: the smallest
plain mean of a route's samples against the reference's plain mean in trial 0.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

import numpy as np
from scipy.stats import binomtest

from gpt_search.domain.budget import Budget
from gpt_search.domain.evaluation import Evaluation
from gpt_search.measure.intervals import Verdict
from gpt_search.run.config import TuneConfig
from gpt_search.run.confirm import confirm
from gpt_search.run.tune import tune
from gpt_search.store.study import StudyStore
from gpt_search.workloads.catalogue import public_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--studies", type=int, default=20)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--rebuilds", type=int, default=5)
    arguments = parser.parse_args()
    verdicts: list[str] = []
    claims: list[float] = []
    headlines: list[float] = []
    naive: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.studies):
            claim, plain, verdict, headline = one_study(Path(folder), number, arguments.trials, arguments.rebuilds)
            claims.append(claim)
            naive.append(plain)
            verdicts.append(verdict)
            if headline is not None:
                headlines.append(headline)
            shown = "nothing nominated" if headline is None else f"confirmed {_percent(headline)}"
            print(
                f"study {number:2}: claimed {_percent(claim)}, naive minimum {_percent(plain)}, {shown}: {verdict}",
                flush=True,
            )
    wrong = sum(v == Verdict.FASTER.name for v in verdicts)
    interval = binomtest(wrong, len(verdicts)).proportion_ci(0.95)
    print(f"confirmed faster: {wrong} of {len(verdicts)} (95 % interval {interval.low:.1%} to {interval.high:.1%})")
    print(f"the search's claim: {_percent(float(np.mean(claims)))}; naive minimum: {_percent(float(np.mean(naive)))}")
    if len(headlines) > 1:
        error = float(np.std(headlines, ddof=1)) / math.sqrt(len(headlines))
        print(f"headline: {_percent(float(np.mean(headlines)))} +- {100 * error:.2f} % (standard error)")


def one_study(folder: Path, number: int, trials: int, rebuilds: int) -> tuple[float, float, str, float | None]:
    """Gains as -log-ratios: the search's claim, the naive minimum's; the verdict; the headline, None without one."""
    model = public_model("magika")
    config = TuneConfig(
        model=model.model,
        shapes=model.shapes,
        strategy="random",
        budget=Budget(trials=trials),
        seed=number,
        backend=f"{Path(__file__).with_name('inert_backend.py')}:InertBackend",
        tolerances=("0.001",),
        storage=str(folder / "studies.journal"),
        study=f"null{number}",
    )
    tune(config)
    found = confirm(config.study_name, config.storage, rebuilds=rebuilds)
    with StudyStore.read(config.storage, config.study_name) as store:
        rows = store.restore().rows
    claim = 0.0 if found.winner is None else -math.log(found.winner.ratio)
    means = [_mean_ms(r.evaluation, "candidate_ms") for r in rows[1:] if r.evaluation.rounds]
    plain = math.log(_mean_ms(rows[0].evaluation, "reference_ms") / min(means))
    headline = None if found.speedup is None else math.log(found.speedup.estimate)
    return claim, plain, found.verdict.name, headline


def _mean_ms(evaluation: Evaluation, side: str) -> float:
    return float(np.mean(np.concatenate([getattr(r, side) for r in evaluation.rounds])))


def _percent(gain: float) -> str:
    return f"{100 * math.expm1(gain):+.2f} %"


if __name__ == "__main__":
    main()
