"""Tables from files of other auto-tuners: raw samples, failures and costs, on which strategies can be compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gpt_search.domain.digest import digest_of, digest_of_file
from gpt_search.domain.errors import InputError, did_you_mean
from gpt_search.domain.evaluation import Evaluation, Round
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.route import Route
from gpt_search.domain.space import Dimension, SearchSpace
from gpt_search.store.settings import StudySettings
from gpt_search.store.t4 import TunerFile, TunerRow, read_tuner_file
from gpt_search.store.table_file import MIN_ROUNDS, write_table
from gpt_search.store.table_record import TableRecord
from gpt_search.store.tables import Table, load_table


@dataclass(frozen=True)
class ImportedTable:
    """The new table, and what the user should know."""

    table: Table
    notes: tuple[str, ...]


def import_table(path: Path, out: Path, reference: str | None = None) -> ImportedTable:
    """Makes a table from a cache file of Kernel Tuner, or T4 results.

    reference: the reference route as text, `-name=value ...`; parameters that it leaves out have the value of the first
    configuration that was timed, which is the reference by default.

    Raises InputError for another file, one without a timed configuration or without raw samples, names or values
    that no route can hold, a reference that the file did not time, and where `out` exists.
    """
    file = read_tuner_file(path)
    first = next((row for row in file.rows if row.outcome is Outcome.OK), None)
    if first is None:
        raise InputError(f"{path} holds no configuration that was timed: there is nothing to compare with")
    for row in file.rows:
        if row.outcome is Outcome.OK and len(row.samples_ms) < MIN_ROUNDS:
            raise InputError(
                f"{path}, {row.where}: {len(row.samples_ms)} raw samples; a table needs {MIN_ROUNDS} or more of each, "
                "half of them for the truth and half for replays"
            )
    default = _default(path, file, first, reference)
    space = _space(path, file, default)
    chosen = space.default.tolist()
    rows: dict[tuple[int, ...], list[TunerRow]] = {}
    for row in file.rows:
        rows.setdefault(tuple(space.codes(Route(tuple(row.configuration.items()))).tolist()), []).append(row)
    mine = rows.get(tuple(chosen), [])
    if not mine or mine[0].outcome is not Outcome.OK:
        raise InputError(f"{path} did not time the reference {space.reference}; give another --reference")
    reference_ms = float(median(mine[0].samples_ms))
    order = [tuple(chosen), *(codes for codes in rows if codes != tuple(chosen))]
    records = [
        TableRecord(codes, build, _evaluation(row, reference_ms), paired=False)
        for codes in order
        for build, row in enumerate(rows[codes])
    ]
    write_table(out, _settings(path, file).with_space(space), records)
    notes = [
        *file.notes,
        "samples are unpaired and of one process: their spread does not hold drift, nor what builds differ by",
    ]
    if reference is None:
        notes.append("the reference is the first configuration that was timed; choose another with --reference")
    if len(rows) < space.size:
        notes.append(
            f"{space.size - len(rows):,} of {space.size:,} configurations are not in the file; where those break "
            "constraints of the space, the policy `refuse` treats them so"
        )
    return ImportedTable(load_table(out), tuple(notes))


def _default(path: Path, file: TunerFile, first: TunerRow, reference: str | None) -> dict[str, str]:
    default = dict(first.configuration)
    for name, value in Route.parse(reference or "").items_in_order:
        if name not in default:
            raise InputError(f"--reference: {path} has no parameter {name!r}{did_you_mean(name, default)}")
        if value not in file.values[name]:
            raise InputError(f"--reference: {name} is {value!r}; {path} has {', '.join(file.values[name])}")
        default[name] = value
    return default


def _space(path: Path, file: TunerFile, default: dict[str, str]) -> SearchSpace:
    for name, values in file.values.items():
        for text in (name, *values):
            if not text or any(c.isspace() for c in text) or "=" in name or text.startswith("["):
                raise InputError(f"{path}: parameter {name!r}: {text!r} cannot be written in a route")
    dimensions = [Dimension(n, v, v.index(default[n])) for n, v in file.values.items() if len(v) > 1]
    return SearchSpace(dimensions, {n: v[0] for n, v in file.values.items() if len(v) == 1})


def _evaluation(row: TunerRow, reference_ms: float) -> Evaluation:
    rounds = tuple(Round((ms,), (reference_ms,)) for ms in row.samples_ms)
    return Evaluation(row.outcome, Phase.TIME, rounds=rounds, cost_s=dict(row.cost_s), message=row.message)


def _settings(path: Path, file: TunerFile) -> StudySettings:
    return StudySettings(
        {
            "backend": file.program,
            "workload": {"digest": digest_of_file(path), "name": file.name},
            "database": {
                "tuner_version": file.program,
                "digest": digest_of({n: list(v) for n, v in file.values.items()}),
            },
            "environment": {"device": file.device},
            "fingerprint": "NONE",
            "time_infeasible": False,
            "imported": {"program": file.program, "file": path.name, "digest": digest_of_file(path)},
        }
    )
