"""Confirmation: a search only nominates; the headline comes from fresh builds of one route and the reference.

Stage 1 rebuilds the best k routes and picks one. Stage 2 rebuilds only that one and the reference,
and the speed-up with its interval comes from stage 2 alone, so picking the luckiest of many
timings cannot inflate it. The unit is a pair of fresh builds in fresh processes, made in random order, whose
paired rounds give one log-ratio; the interval is a t interval over those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpt_search.accuracy.gate import worst
from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation, note_counts
from gpt_search.domain.outcome import Outcome
from gpt_search.domain.route import Route
from gpt_search.domain.streams import Streams, seed_from
from gpt_search.measure.intervals import Interval, Verdict, ratio_interval, simultaneous_intervals, verdict
from gpt_search.run.kept import Keeper, kept_names
from gpt_search.run.rebuild import every_round, log_ratio, median_ms, points_json, rebuild_pair
from gpt_search.run.result import Nominee, accuracy_json, timing_json
from gpt_search.run.setup import Prepared
from gpt_search.run.show import history_of, nominate
from gpt_search.run.tune import prepared_for
from gpt_search.store.engines import EngineFiles
from gpt_search.store.study import StudyStore

DEFAULT_TOP = 3
DEFAULT_REBUILDS = 7
STAGE_1_REBUILDS = 3
"""Stage 1 ranks, and says how sure that is. Its simultaneous intervals over 3 routes are 27 standard deviations
of a build wide to each side with 2 builds, 4.4 with 3, 2.4 with 4: the third build is worth its cost."""

LEVEL = 0.95
"""Of the headline's interval, and of those of stage 1 together."""

Step = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Confirmation:
    """The result of a confirmation.

    winner: None where no route was nominated or every nominated one failed when built again; the
    answer is then to keep the default, as it is unless the verdict is FASTER. speedup: reference / winner, from
    stage 2. metric: of the tolerance. data: everything, raw samples included, as stored.
    """

    winner: Nominee | None
    speedup: Interval | None
    verdict: Verdict
    reason: str
    metric: str
    data: Mapping[str, Any]


def confirm(
    study: str,
    storage: str,
    top: int = DEFAULT_TOP,
    rebuilds: int = DEFAULT_REBUILDS,
    step: Step | None = None,
) -> Confirmation:
    """Confirms what a study nominates, and stores the result with it.

    top: how many routes stage 1 rebuilds. rebuilds: pairs of builds in stage 2; fewer than 5 make a
    preliminary interval. step(done, total, what): called before each build pair.
    Raises InputError when the study is unknown, has no finished reference, or something it rests on has changed.
    """
    if top < 1 or rebuilds < 1:
        raise InputError(f"--top {top} --rebuilds {rebuilds}: both must be 1 or more")
    with StudyStore.open(storage, study) as store:
        prepared = prepared_for(store)
        restored = store.restore()
        if not restored.rows:
            raise InputError(f"study {study!r} has no finished trial yet; continue it with `{store.resume_command}`")
        history = history_of(store, restored)
        nominees = nominate(store, restored, history, prepared.strategy, top)
        reference_ms = restored.rows[0].evaluation.latency_ms
        if reference_ms is None:
            raise InputError(f"study {study!r} has no timed reference, so there is nothing to confirm against")
        earlier = store.confirmations()
        run = _Run(prepared, store.engines, reference_ms, rebuilds, len(earlier), len(restored.rows) - 1, step)
        result = run.both_stages([n for n in nominees if n.ratio < 1.0 and n.trial != 0])
        store.append_confirmation(result.data)
        store.engines.keep_only(kept_names(result.data))
        return result


class _Run:
    """One confirmation: counts its steps and keeps the evaluations."""

    def __init__(
        self,
        prepared: Prepared,
        engines: EngineFiles,
        reference_ms: float,
        rebuilds: int,
        number: int,
        trials: int,
        step: Step | None,
    ) -> None:
        self.engines = engines
        self.prepared, self.reference_ms, self.rebuilds, self.number = prepared, reference_ms, rebuilds, number
        self.trials, self.step = trials, step
        self.done = self.total = 0
        self.protocol = every_round(prepared.protocol)

    def both_stages(self, nominees: Sequence[Nominee]) -> Confirmation:
        """Stage 1 where there is more than one to choose from, then stage 2."""
        several = len(nominees) > 1
        self.total = self.rebuilds * bool(nominees) + several * STAGE_1_REBUILDS * len(nominees)
        stage_1 = self._stage_1(nominees) if several else {n.trial: [] for n in nominees}
        ranked = sorted(
            (n for n in nominees if all(e.outcome is Outcome.OK for e in stage_1[n.trial])),
            key=lambda n: _mean_log_ratio(stage_1[n.trial]) if several else n.ratio,
        )
        winner: Nominee | None = None
        stage_2: list[Evaluation] = []
        refused: dict[int, Evaluation] = {}
        reason = "no route was timed faster than the reference"
        for candidate in ranked:
            stage_2 = self._stage_2(candidate)
            if all(e.outcome is Outcome.OK for e in stage_2):
                winner = candidate
                break
            self.total += len(stage_2)  # the next one has all its builds before it
            refused[candidate.trial], stage_2 = stage_2[-1], []
        if nominees and winner is None:
            failed = [*refused.values(), *(e for es in stage_1.values() for e in es if e.outcome is not Outcome.OK)][0]
            words = " ".join((failed.message or failed.outcome.explanation).split())
            reason = f"the nominated routes failed when built again ({failed.outcome.name}: {words})"
        interval: Interval | None = None
        found = Verdict.NOT_DISTINGUISHABLE
        if winner is not None:
            interval = ratio_interval([-log_ratio(e) for e in stage_2], LEVEL)
            found = verdict(interval)
            reason = found.explanation
        return Confirmation(
            winner,
            interval,
            found,
            reason,
            self.prepared.tolerances.metric,
            self._data(nominees, stage_1, winner, stage_2, refused, interval, found, reason),
        )

    def _stage_1(self, nominees: Sequence[Nominee]) -> dict[int, list[Evaluation]]:
        order = [n for n in nominees for _ in range(STAGE_1_REBUILDS)]
        found: dict[int, list[Evaluation]] = {n.trial: [] for n in nominees}
        for i in Streams(seed_from(self.prepared.seed, "confirm")).trial(self.number).permutation(len(order)).tolist():
            nominee = order[i]
            found[nominee.trial].append(self._rebuild(nominee, 1, i))
        return found

    def _stage_2(self, nominee: Nominee) -> list[Evaluation]:
        found: list[Evaluation] = []
        keeper = Keeper(self.engines)
        for i in range(self.rebuilds):
            found.append(self._rebuild(nominee, 2, i, keeper))
            keeper.shrink(found)
            if found[-1].outcome is not Outcome.OK:
                break  # one failure is enough to refuse the route
        return found

    def _rebuild(self, nominee: Nominee, stage: int, i: int, keeper: Keeper | None = None) -> Evaluation:
        """One pair of fresh builds, candidate and reference, in fresh processes, timed in alternating rounds."""
        if self.step is not None:
            self.step(self.done, self.total, f"stage {stage}, trial {nominee.trial}")
        self.done += 1
        seed = seed_from(self.prepared.seed, "confirm", self.number, stage, nominee.trial, i)
        keep = None if keeper is None else keeper.keep
        return rebuild_pair(
            self.prepared, self.protocol, Route.parse(nominee.route), self.reference_ms, seed, keep=keep
        )

    def _data(
        self,
        nominees: Sequence[Nominee],
        stage_1: Mapping[int, Sequence[Evaluation]],
        winner: Nominee | None,
        stage_2: Sequence[Evaluation],
        refused: Mapping[int, Evaluation],
        interval: Interval | None,
        found: Verdict,
        reason: str,
    ) -> dict[str, Any]:
        losses = [pair for e in stage_2 for pair in e.losses]
        return {
            "number": self.number,
            "trials": self.trials,
            "rebuilds": self.rebuilds,
            "nominees": [n.to_json() for n in nominees],
            "winner": None if winner is None else winner.to_json(),
            "speedup": None if interval is None else interval.to_json(),
            "preliminary": None if interval is None else interval.preliminary,
            "claimed": None if winner is None else 1 / winner.ratio,
            "optimism": None if winner is None or interval is None else 1 / winner.ratio / interval.estimate - 1,
            "verdict": found.name,
            "keep_default": found.keep_default,
            "reason": reason,
            "accuracy": accuracy_json(worst(losses, self.prepared.tolerances)) if winner and losses else None,
            **points_json(stage_2, self.prepared.workload),
            "notes": note_counts(e.notes for e in stage_2),
            "timing": timing_json(self.prepared.protocol),
            "reference_ms": median_ms(stage_2, "reference", self.prepared.statistic),
            "latency_ms": median_ms(stage_2, "candidate", self.prepared.statistic),
            "stage_1_intervals": stage_1_intervals(stage_1),
            "stage_1": {str(t): [e.to_json() for e in es] for t, es in stage_1.items()},
            "stage_2": [e.to_json() for e in stage_2],
            "refused": {str(t): e.to_json() for t, e in refused.items()},
        }


def stage_1_intervals(stage_1: Mapping[int, Sequence[Evaluation]]) -> dict[str, Any]:
    """The speed-ups of stage 1 by trial, as JSON; all of them hold at once at 95 %. None for a route that failed."""
    failed = {t for t, es in stage_1.items() if not es or any(e.outcome is not Outcome.OK for e in es)}
    # A route that failed counts in the level: which routes fail was not known beforehand.
    level = 1 - (1 - LEVEL) * (len(stage_1) - len(failed)) / max(1, len(stage_1))
    timed = {t: [-log_ratio(e) for e in es] for t, es in stage_1.items() if t not in failed}
    found = simultaneous_intervals(list(timed.values()), level) if timed else []
    by_trial = dict(zip(timed, found, strict=True))
    return {str(t): None if t in failed else by_trial[t].to_json() for t in stage_1 if stage_1[t]}


def _mean_log_ratio(evaluations: Sequence[Evaluation]) -> float:
    return math.fsum(log_ratio(e) for e in evaluations) / len(evaluations)
