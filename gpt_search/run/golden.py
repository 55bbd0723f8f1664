"""Golden data for a study: made or read once, kept beside the records, found again by what they were made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpt_search.accuracy.golden import (
    DEFAULT_ENGINE,
    FILES,
    ONNXRUNTIME_FP32,
    golden_digest,
    load_golden,
    read_user_golden,
    save_golden,
)
from gpt_search.accuracy.user_golden import check_finite
from gpt_search.backends.base import BuildOptions
from gpt_search.domain.digest import digest_of, digest_of_file
from gpt_search.domain.errors import InputError
from gpt_search.domain.route import Route
from gpt_search.domain.workload import GoldenPair, Workload
from gpt_search.execution.engines import infer_with
from gpt_search.execution.launcher import WorkerFailed
from gpt_search.run.config import TuneConfig
from gpt_search.workloads.inspect import external_files
from gpt_search.workloads.model import Model
from gpt_search.workloads.reference import make_inputs, make_reference_pairs

# Not the study's seed: studies that differ in their seed are then judged on the same golden data.
INPUT_SEED = 0
OWN = "backend"
"""The kind of golden data that a backend brings itself (the synthetic one)."""


@dataclass(frozen=True)
class Golden:
    """A golden file and what kind of reference it holds."""

    path: Path
    kind: str


def prepare_golden(
    config: TuneConfig, model: Model, folder: Path, reference: Route, backend: str, environment: Mapping[str, str]
) -> Golden:
    """The golden file for a run, made in `folder` unless an equal one is there.

    backend: its name with absolute paths. environment: what the outputs of the default engine depend on.
    Raises InputError when the user's golden data, or the model that makes them, are not usable.
    """
    kind = OWN if model.golden is not None else config.reference
    if kind == OWN and (config.golden is not None or config.reference != ONNXRUNTIME_FP32):
        raise InputError(
            f"the backend {config.backend.partition(':')[0]!r} brings golden data of its own; leave --reference and "
            "--golden out"
        )
    if kind == FILES:
        assert config.golden is not None
        pairs = read_user_golden(config.golden, model.inputs, model.outputs)
        _check_points(model.workload, pairs, config.golden)
        return Golden(_saved(folder, pairs, {"kind": kind, "content": golden_digest(pairs)}), kind)
    info: dict[str, Any] = {"kind": kind, "model": model.workload.digest, "seed": INPUT_SEED, "pairs": config.pairs}
    if model.golden is not None:
        return Golden(_saved(folder, model.golden(config.pairs), info), kind)
    if kind == DEFAULT_ENGINE:
        info |= {"backend": backend, "route": str(reference)}
        info |= {"options": dict(config.options), "environment": dict(environment)}
    elif config.golden is not None:
        if not config.golden.is_file():
            raise InputError(f"--golden {config.golden}: there is no such float32 model file")
        files = [config.golden, *external_files(config.golden)]
        info["float32"] = [digest_of_file(file) for file in files]
    path = _path(folder, info)
    if path.is_file() and stored_golden(path)[1] == info:
        return Golden(path.absolute(), kind)
    if kind == DEFAULT_ENGINE:
        pairs = _from_default_engine(config, model, reference, backend)
    else:
        pairs = make_reference_pairs(model.workload, INPUT_SEED, config.pairs, config.golden)
    for number, pair in enumerate(pairs):
        try:
            check_finite(pair.outputs, f"--reference {kind}, golden pair {number}")
        except InputError as error:
            raise InputError(
                f"{error}; declare the range of an input in the model's metadata (gpt_search.range.INPUT: "
                '"low,high"), or bring golden data with --reference files'
            ) from None
    return Golden(_saved(folder, pairs, info), kind)


def stored_golden(path: Path) -> tuple[list[GoldenPair], dict[str, Any]]:
    """The pairs and the info of a file that `prepare_golden` made. Raises InputError: how it is made again."""
    try:
        return load_golden(path)
    except InputError as error:
        raise InputError(
            f"the stored golden data cannot be used: {error}. Remove that file and run `gpt-search tune` with the "
            "options of the first run, which makes it again"
        ) from None


def _check_points(workload: Workload, pairs: Sequence[GoldenPair], where: Path) -> None:
    """Raises InputError where a pair is of no shape point, or a point has no pair."""
    found = [workload.point_of(pair) for pair in pairs]
    if None in found:
        raise InputError(
            f"--golden {where}: pair {found.index(None)} has the input shapes of none of the points "
            f"({', '.join(p.name for p in workload.points)})"
        )
    for number, point in enumerate(workload.points):
        if number not in found:
            raise InputError(f"--golden {where}: no pair has the input shapes of point {point.name!r}; each needs one")


def _from_default_engine(config: TuneConfig, model: Model, reference: Route, backend: str) -> list[GoldenPair]:
    """The outputs of the engine that the compiler builds by default, on seeded inputs."""
    inputs = make_inputs(model.workload, INPUT_SEED, config.pairs)
    try:
        outputs = infer_with(
            backend,
            model.workload,
            reference,
            inputs,
            BuildOptions(config.options),
            timeout_build_s=config.timeout_build_s,
            timeout_run_s=config.timeout_run_s,
        )
    except WorkerFailed as error:
        words = " ".join(error.message.split())
        raise InputError(f"--reference default-engine: the reference route cannot be built or run: {words}") from None
    return [GoldenPair(i, o) for i, o in zip(inputs, outputs, strict=True)]


def _path(folder: Path, info: dict[str, Any]) -> Path:
    return folder / f"{digest_of(info)[:16]}.npz"


def _saved(folder: Path, pairs: list[GoldenPair], info: dict[str, Any]) -> Path:
    path = _path(folder, info)
    if not path.is_file():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            save_golden(path, pairs, info)
        except OSError as error:
            raise InputError(f"cannot write the golden data {path}: {error.strerror or error}") from None
    return path.absolute()
