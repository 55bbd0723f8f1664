"""Re-judging by another statistic of the same samples: the median, the mean, a tail quantile.

All raw samples are in the records, so a study that was timed by one statistic can be ranked by another. A tail quantile
needs many samples, and a route whose timing was stopped early has few: then its place is unknown, and has to be built.
What samples of another kind would be needed for (calls in flight, host copies) cannot be had from the records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.measure.paired import latency_of, paired_estimate, point_log_ratios, section_log_ratios
from gpt_search.measure.protocol import Protocol
from gpt_search.measure.statistic import Statistic, check_timing
from gpt_search.store.study import Row


def retimed_protocol(old: Protocol, timing: str) -> Protocol:
    """The study's protocol with another statistic. Raises InputError where the samples are not of its kind."""
    check_timing(timing)
    if timing == old.timing:
        return old
    if "throughput" in (timing, old.timing):
        raise InputError(
            f"the study was timed as {old.timing}, and its samples say nothing of {timing}: with calls in flight a "
            "sample is another thing; tune again with --timing"
        )
    usual = Protocol.for_timing(timing, old.streams, old.host_copies)
    most = max(old.max_rounds, usual.max_rounds)
    return replace(old, timing=timing, max_rounds=most)


def retimed(rows: Sequence[Row], protocol: Protocol, weights: tuple[float, ...]) -> tuple[list[Row], frozenset[int]]:
    """The rows with their values by the protocol's statistic, and the trials whose samples are too few for it.

    rows: the reference's first. A row needs `protocol.min_rounds` sections. Rows of one engine share its samples
    through the first of them that has enough; one that has too few ends at the gate.
    Raises InputError where the reference has too few.
    """
    statistic = protocol.statistic(weights)
    enough = {r.trial: _sections(r.evaluation, statistic) >= protocol.min_rounds for r in rows if r.evaluation.rounds}
    reference = rows[0].evaluation
    if not enough.get(0):
        raise InputError(
            f"the reference's samples are too few for {protocol.timing}: {_sections(reference, statistic)} times "
            f"{statistic.samples} of each side, and it needs {protocol.min_rounds}; nothing can be compared with it, "
            f"so tune again with --timing {protocol.timing}"
        )
    reference_ms = latency_of(reference.rounds, "reference", statistic)
    owners: dict[int, int] = {}  # trial that began the samples -> first trial that has enough of them
    for row in sorted(rows, key=lambda r: r.trial):
        if enough.get(row.trial):
            owners.setdefault(_began(row), row.trial)
    found, lacking = [], set()
    for row in rows:
        evaluation, owner = row.evaluation, owners.get(_began(row))
        if not evaluation.rounds:
            found.append(row)
        elif enough[row.trial]:
            found.append(row._replace(evaluation=_timed(row, owner, reference_ms, statistic)))
        else:
            if owner is None and evaluation.outcome is Outcome.OK:
                lacking.add(row.trial)
            found.append(row._replace(evaluation=_untimed(evaluation), until=Phase.GATE))
    return found, frozenset(lacking)


def _timed(row: Row, owner: int | None, reference_ms: float, statistic: Statistic) -> Evaluation:
    evaluation, first = row.evaluation, row.trial == 0
    estimate = paired_estimate(evaluation.rounds, statistic)
    log_ratio = 0.0 if first else estimate.log_ratio
    latency_ms = math.exp(log_ratio) * reference_ms
    points: tuple[float, ...] = ()
    if statistic.points > 1:
        points = (0.0,) * statistic.points if first else point_log_ratios(evaluation.rounds, statistic)
    shared: Mapping[str, int | None] = {"timed_as": owner}
    if owner == row.trial:
        shared = {"timed_as": None, "borrowed": 0}
    return replace(
        evaluation,
        log_ratio=log_ratio,
        log_ratio_error=estimate.error,
        latency_ms=latency_ms,
        error_ms=latency_ms * estimate.error,
        point_log_ratios=points,
        **shared,  # type: ignore[arg-type]
    )


def _untimed(evaluation: Evaluation) -> Evaluation:
    """What is left without the samples."""
    return replace(
        evaluation,
        until=Phase.GATE,
        rounds=(),
        log_ratio=None,
        log_ratio_error=None,
        latency_ms=None,
        error_ms=None,
        point_log_ratios=(),
        timed_as=None,
        borrowed=0,
        checks=None,
        raced=False,
    )


def _sections(evaluation: Evaluation, statistic: Statistic) -> int:
    return len(section_log_ratios(evaluation.rounds, statistic))


def _began(row: Row) -> int:
    return row.trial if row.evaluation.timed_as is None else row.evaluation.timed_as
