"""Tuning: a strategy proposes, the evaluator builds and times, the store keeps, until the budget is spent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from gpt_search.accuracy.gate import reference_misses
from gpt_search.domain.budget import Budget
from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.history import History
from gpt_search.domain.outcome import Observation, Outcome
from gpt_search.domain.space import Codes
from gpt_search.domain.streams import Streams, seed_from
from gpt_search.execution.launcher import BuildProgress
from gpt_search.execution.rounds import ReferenceFailed
from gpt_search.run.config import AUTO, TuneConfig
from gpt_search.run.engines import Engines
from gpt_search.run.import_cache import refuse_imported
from gpt_search.run.noise import noise_between_builds, settle_noise
from gpt_search.run.result import Status, StudySummary, best_row
from gpt_search.run.setup import Prepared, prepare, prepare_stored, strategy_spec
from gpt_search.run.show import summarise
from gpt_search.search.loop import End, Trial, run_loop
from gpt_search.store.settings import differences
from gpt_search.store.study import StudyStore

Progress = Callable[[Status], None]


def tune(
    config: TuneConfig,
    progress: Progress | None = None,
    started: Callable[[StudyStore], None] | None = None,
    note: Callable[[str], None] | None = None,
    building: BuildProgress | None = None,
) -> StudySummary:
    """Runs a study to the end of its budget, or continues it when it exists with equal settings.

    progress: called after every finished trial. started: called once with the open study. note:
    called with what the expression's parser wants the user to know. building: called with what a backend tells of a
    build on its way, from the thread of that build.
    Raises InputError for anything the user must mend; KeyboardInterrupt leaves a resumable study.
    """
    prepared = prepare(config)
    if note is not None:
        for text in prepared.space.notes:
            note(text)
    if config.strategy == AUTO:
        config = replace(config, strategy=strategy_spec(prepared.strategy))
    with StudyStore.create_or_resume(config.storage, config.study_name, prepared.settings(), prepared.space) as store:
        store.set_attr("budget", _budget_json(config.budget))
        store.set_attr("builders", config.builders)
        return _run(prepared, store, config.budget, config.builders, progress, started, building)


def resume(
    study: str,
    storage: str,
    budget: Budget | None = None,
    builders: int | None = None,
    progress: Progress | None = None,
    started: Callable[[StudyStore], None] | None = None,
    building: BuildProgress | None = None,
) -> StudySummary:
    """Continues a study with its stored settings; a new budget replaces the old one and counts from the study's start.

    Raises InputError with the list of differences when model, golden data, versions or strategy have changed.
    """
    with StudyStore.open(storage, study) as store:
        prepared = prepared_for(store)
        if budget is None:
            stored = store.attr("budget")
            if stored is None:
                raise InputError(
                    f"study {study!r} was stopped before its budget was stored; give one (--trials, --builds or "
                    "--seconds), or run the same `gpt-search tune` again"
                )
            budget = Budget(**stored)
        else:
            store.set_attr("budget", _budget_json(budget))
        return _run(prepared, store, budget, builders or store.attr("builders", 1), progress, started, building)


def prepared_for(store: StudyStore) -> Prepared:
    """A stored study's pieces, looked at anew. Raises InputError when something is not as it was."""
    refuse_imported(store.settings, store.name)
    prepared = prepare_stored(store.settings, store.space)
    found = differences(store.settings, prepared.settings().with_space(store.space))
    if found:
        raise InputError(
            f"study {store.name!r} cannot be continued, because something has changed since: {'; '.join(found)}. "
            "Restore it, or start a new study"
        )
    return prepared


def _budget_json(budget: Budget) -> dict[str, float | None]:
    return {"trials": budget.trials, "builds": budget.builds, "seconds": budget.seconds}


def _run(
    prepared: Prepared,
    store: StudyStore,
    budget: Budget,
    builders: int,
    progress: Progress | None,
    started: Callable[[StudyStore], None] | None,
    building: BuildProgress | None,
) -> StudySummary:
    restored = store.restore()
    if store.attr("end") is not None:
        store.set_attr("end", None)  # a larger budget: while it runs, and after a kill, the study has not ended
    # The reference is not charged: the study's clock starts when it has finished.
    began = time.monotonic() if restored.rows else None
    at_start = len(restored.rows)

    def clock() -> float:
        return restored.clock_s + (0.0 if began is None else time.monotonic() - began)

    history = History(prepared.space)
    engines = Engines(prepared.protocol, prepared.description.fingerprint, prepared.seed, prepared.workload.weights)
    evaluations: dict[int, Evaluation] = {}
    if started is not None:
        started(store)
    with prepared.evaluator() as evaluator:
        evaluator.pool.on_progress = building

        def learn(trial: int, codes: Codes, found: Evaluation) -> None:
            engines.learn(trial, codes, found)
            if trial == 0:
                evaluator.reference_latency_ms = found.latency_ms
                if found.latency_ms is not None:
                    history.noise = settle_noise(store, prepared, found, fresh=at_start <= 1)
                    engines.between = noise_between_builds(store)

        for row in restored.rows:
            history.append(row.trial, row.codes, row.evaluation.observation(), row.until)
            learn(row.trial, row.codes, row.evaluation)

        def evaluate(trial: Trial) -> Observation:
            seed = seed_from(prepared.seed, "measure", trial.number)
            if trial.number == 0:
                found = evaluator.evaluate_reference(seed=seed)
            else:
                route, known = prepared.space.route(trial.codes), engines.known(trial.number, trial.codes)
                found = evaluator.evaluate(route, trial.until, engines.race.best, known, seed, trial.number)
            evaluations[trial.number] = found
            return found.observation()

        def on_start(trial: Trial) -> None:
            store.start(trial.number, trial.codes, trial.until)

        def on_finish(trial: Trial, _: Observation) -> None:
            store.finish(trial.number, evaluations[trial.number], clock())

        def on_learnt(trial: Trial, _: Observation) -> None:
            nonlocal began
            found = evaluations.pop(trial.number)
            if trial.number == 0:
                began = time.monotonic()
            learn(trial.number, trial.codes, found)
            if progress is not None:
                progress(_status(history, budget, clock(), trial.number, found, restored.clock_s, at_start))

        try:
            end = run_loop(
                prepared.space,
                prepared.strategy,
                history,
                Streams(prepared.seed),
                budget,
                evaluate,
                on_start=on_start,
                on_finish=on_finish,
                on_learnt=on_learnt,
                clock=clock,
                builders=builders,
                adopted=[Trial(a.trial, a.codes, a.until, 0.0) for a in restored.adopted],
            )
        except ReferenceFailed as failed:
            words = " ".join(failed.message.split())
            raise InputError(
                f"the reference engine failed twice in a row ({failed.outcome.name}): {words}. Nothing that was "
                f"finished is lost: remove the cause, then `{store.resume_command}`"
            ) from None
    if end is End.REFERENCE:
        raise _reference_failed(prepared, store)
    store.set_attr("end", end.value)
    return summarise(store, prepared.strategy)


def _status(
    history: History,
    budget: Budget,
    clock_s: float,
    trial: int,
    found: Evaluation,
    clock_at_start: float,
    rows_at_start: int,
) -> Status:
    finished = len(history) - 1
    best = best_row(history)
    reference_ms = float(history.value[0])
    shares = [
        (budget.trials, finished),
        (budget.builds, history.builds),
        (budget.seconds, clock_s),
    ]
    used = max((done / limit if limit else 1.0 for limit, done in shares if limit is not None), default=0.0)
    # The pace of this session alone: an earlier one may have run on another machine's mood.
    pace = (clock_s - clock_at_start) / max(1, len(history) - rows_at_start)
    left = [pace * max(0, limit - done) for limit, done in shares[:2] if limit is not None]
    if budget.seconds is not None:
        left.append(max(0.0, budget.seconds - clock_s))
    return Status(
        trial=trial,
        finished=finished,
        best_trial=int(history.trial[best]) if best is not None else 0,
        best_ratio=float(history.value[best]) / reference_ms if best is not None else math.nan,
        feasible=int((history.outcome[1:] == Outcome.OK).sum()),
        clock_s=clock_s,
        left_s=min(left) if left else None,
        used=min(1.0, used),
        evaluation=found,
        reference_ms=reference_ms,
    )


def _reference_failed(prepared: Prepared, store: StudyStore) -> InputError:
    """Why nothing can be tuned; the study is taken away again, so that a corrected command may use its name."""
    found = store.restore().rows[0].evaluation
    store.discard()
    if found.outcome is Outcome.ACCURACY:
        message = reference_misses(found.losses, prepared.tolerances)
        if message is not None:
            return InputError(message)
    words = " ".join((found.message or found.outcome.explanation).split()).rstrip(": ")
    if found.outcome is Outcome.LIMIT:
        words += "; raise --max-engine-size or --max-memory, or leave it out"
    elif found.outcome is Outcome.TIMEOUT:
        words += "; it may need a longer --timeout-build or --timeout-run"
    elif found.outcome is Outcome.MEMORY and prepared.memory_limit_gb is not None:
        words += f"; it may need a --memory-limit above {prepared.memory_limit_gb:g}"
    return InputError(f"the reference route cannot be measured ({found.outcome.name}): {words}")
