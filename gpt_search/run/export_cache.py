"""A study as a tuning cache of trtexec, and what applies its winner in trtexec and in Torch-TensorRT.

trtexec's `--continue` counts the rows of a cache and goes on at that index of its enumeration, without looking at the
routes. So a cache can be continued only when its rows are exactly the first routes of that enumeration, in order.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

from gpt_search.backends.tensorrt_build import span_of
from gpt_search.domain.errors import InputError
from gpt_search.domain.evaluation import Evaluation
from gpt_search.domain.expression import parse_expression
from gpt_search.domain.knob import Knob, KnobDatabase
from gpt_search.domain.outcome import Outcome
from gpt_search.domain.route import Route
from gpt_search.domain.space import Codes, SearchSpace
from gpt_search.domain.workload import Workload
from gpt_search.search.discovery import load_strategy
from gpt_search.store.study import Row, StudyStore
from gpt_search.store.tuning_cache import CacheRow, write_tuning_cache
from gpt_search.workloads.inspect import inspect_model

_SEARCHES = ("fast", "full", "mixed")


def export_cache(store: StudyStore, out: Path, continuable: bool = False) -> tuple[int, str]:
    """Writes the study's finished trials as a tuning cache of trtexec; returns its bytes and what to know about it.

    continuable: only as a cache that `trtexec --continue` can go on with. Raises InputError with the reason where
    that would be wrong, and for a study without a finished trial.
    """
    rows = sorted(store.restore().rows, key=lambda r: r.trial)
    if not rows:
        raise InputError(f"study {store.name!r} has no finished trial yet; continue it with `{store.resume_command}`")
    search = _search(store)
    prefix = _prefix(store, rows, search)
    if continuable:
        if isinstance(prefix, str):
            raise InputError(f"study {store.name!r} cannot be continued by trtexec: {prefix}")
        rows = prefix
    metric = store.settings["tolerance"]["metric"]
    written = [_row(i, store.space, r, metric) for i, r in enumerate(rows)]
    size = write_tuning_cache(out, _header(store, out, search or "fast"), written)
    if not isinstance(prefix, str):
        note = (
            f"{len(written)} routes; `trtexec --continue --tuningCacheFile={shlex.quote(str(out))}` goes on from there"
        )
        return size, note if continuable else f"{len(written)} routes"
    return size, f"{len(written)} routes; trtexec cannot continue it: {prefix}"


def trtexec_command(store: StudyStore, route: Route) -> str:
    """The trtexec command that builds and times the route, for the shapes and shape points of the study."""
    words = ["trtexec", f"--onnx={_model(store)}"]
    spans = {name: span_of(name, workload) for workload in [_workload(store)] for name in _open_inputs(workload)}
    if spans:
        parts = ("min", "opt", "max") if any(s.min != s.max for s in spans.values()) else ("opt",)
        for part in parts:
            given = ",".join(f"{n}:{'x'.join(map(str, getattr(s, part)))}" for n, s in spans.items())
            words.append(f"--{part}Shapes={given}")
    return shlex.join([*words, f"--setBuildRoute={_changes(store, route)}"])


def _workload(store: StudyStore) -> Workload:
    return Workload.from_json({"shapes": {}, "external": (), "name": ""} | store.settings["workload"])


def _open_inputs(workload: Workload) -> list[str]:
    """Inputs whose shape the model leaves open: trtexec refuses shapes of a model that has none. All without a file."""
    if not workload.model.is_file():
        return list(workload.shapes)
    _, inputs = inspect_model(workload.model, workload.shapes)
    return [i.name for i in inputs if not all(isinstance(n, int) for n in i.symbolic)]


def left_out(store: StudyStore) -> str:
    """The study's build options, which no applying command has; empty without any."""
    names = [n for n in store.settings.get("options") or {} if not n.startswith("timing_cache")]
    if not names:
        return ""
    return f"; the study's options are not in it, give them there too: {', '.join(names)}"


def torch_tensorrt_setting(store: StudyStore, route: Route) -> str:
    """The keyword argument of `torch_tensorrt.compile` that applies the route."""
    return f"build_route={str(_changes(store, route))!r}"


def _changes(store: StudyStore, route: Route) -> Route:
    return route.changes(dict(store.settings["database"]["defaults"]))


def _model(store: StudyStore) -> str:
    return str(store.settings["workload"]["model"])


def _search(store: StudyStore) -> str | None:
    """trtexec's name of the study's strategy; None where trtexec has none."""
    name, _, options = str(store.settings["strategy"]["spec"]).partition(":")
    return name if name in _SEARCHES and not options else None


def _prefix(store: StudyStore, rows: list[Row], search: str | None) -> list[Row] | str:
    """The rows as the first routes of trtexec's enumeration, in its order; or why they are not."""
    if store.settings["backend"] != "tensorrt":
        return f"it was made with the backend {store.settings['backend']!r}, whose knobs trtexec does not have"
    if search is None:
        return f"its strategy {store.settings['strategy']['spec']!r} is none of trtexec's ({', '.join(_SEARCHES)})"
    try:
        same = parse_expression(_expression(store.space), _database(store), strict=True)
    except InputError as error:
        return f"trtexec refuses its expression ({error})"
    if same != store.space:
        return "trtexec would read its expression as another space"
    by_route: dict[bytes, Row] = {}
    for row in rows:
        by_route.setdefault(row.codes.tobytes(), row)
    routes = cast("Callable[[SearchSpace], Iterator[Codes]]", load_strategy(search).routes)  # type: ignore[attr-defined]
    found: list[Row] = []
    for codes in islice(routes(store.space), len(by_route)):
        if codes.tobytes() not in by_route:
            break
        found.append(by_route.pop(codes.tobytes()))
    # The reference is trial 0 of every study; `full` meets it later.
    beyond = [r for r in by_route.values() if r.trial != 0]
    if beyond:
        what = (
            "a route of mixed's second phase" if search == "mixed" else "not among the first routes in trtexec's order"
        )
        return f"--continue counts rows, and trial {beyond[0].trial} is {what}"
    if not found:
        return "it has none of the first routes in trtexec's order"
    untimed = [r for r in found if r.evaluation.outcome is Outcome.ACCURACY and r.evaluation.latency_ms is None]
    if search == "mixed" and untimed:
        return (
            f"trial {untimed[0].trial} missed the tolerance and was not timed, which trtexec's `mixed` would read as a "
            "gain; tune with --time-infeasible"
        )
    return found


def _row(number: int, space: SearchSpace, row: Row, metric: str) -> CacheRow:
    found: Evaluation = row.evaluation
    losses = None
    if found.losses:
        # trtexec keeps the last pair only; the largest over the pairs is what decides here.
        losses = {o: _worst([pair[o][metric] for pair in found.losses]) for o in found.losses[-1]}
    failed = found.outcome not in (Outcome.OK, Outcome.ACCURACY)
    message = " ".join((found.message or (found.outcome.explanation if failed else "")).split())
    return CacheRow(0, number, space.route(row.codes), failed, message if failed else "", losses, found.latency_ms)


def _worst(losses: list[float]) -> float:
    return math.nan if any(math.isnan(v) for v in losses) else max(losses)


def _header(store: StudyStore, out: Path, search: str) -> dict[str, Any]:
    tolerance = store.settings["tolerance"]
    expression, model = _expression(store.space), _model(store)
    argv = [
        "trtexec",
        f"--onnx={model}",
        f"--tuneBuildRoutes={expression}",
        f"--tuningSearch={search}",
        f"--tuningCacheFile={out.absolute()}",
    ]
    return {
        "tuner_version": store.settings["database"]["tuner_version"],
        "accuracy_algorithm": tolerance["metric"],
        "accuracy_parameter": {"atol": 1e-5, "rtol": 1e-5, "epsilon": tolerance["default"]},
        "searching_algorithm": search,
        "command_line": shlex.join(argv),
        "default_build_route": str(Route(tuple(store.settings["database"]["defaults"].items()))),
        "tuning_expr": expression,
        "files": {"onnx": model},
        "argv": argv,
    }


def _expression(space: SearchSpace) -> str:
    """The space in trtexec's grammar, knobs in the order of the space."""
    varying = [f"-{d.name}=[{'|'.join(d.values[:n])}]" for d, n in zip(space.dimensions, space.listed, strict=True)]
    return " ".join([*varying, *(f"-{n}={v}" for n, v in space.pinned.items())])


def _database(store: StudyStore) -> KnobDatabase:
    """The compiler's defaults with the values of the space: all that the grammar asks a database for."""
    values = {d.name: d.values for d in store.space.dimensions}
    knobs = [
        Knob(n, tuple(dict.fromkeys((*values.get(n, ()), v))), v, open_ended=n not in values)
        for n, v in store.settings["database"]["defaults"].items()
    ]
    return KnobDatabase(store.settings["database"]["tuner_version"], tuple(knobs))
