"""A backend without a compiler: it builds nothing, and behaves as a planted landscape says.

Its latencies, losses, fingerprints and failures are those of a landscape whose truth is known. A
crash is a real crash of the process, a hang really hangs. It is what searches and workers are tested
with, and it is reproducible: every number follows from the landscape, the route, and the addresses
(trial seed, round, slot) that the worker gives it.

Named "synthetic:{...}" with a JSON object:

- "family", "seed", "knobs", "noise": the landscape (see `domain.landscape.planted`); "sparse" with seed 0
  where left out.
- "gentle": true answers a planted crash, timeout or memory overrun at once instead of acting it out.
- "simulate_clock": true reports the landscape's costs in place of the wall time.
- "sleep": true takes as long as it says; else timing returns at once.
- "drift": relative size of a drift that both sides of a round share (default 0).
- "build_noise", "process_noise": relative standard deviation of a level that every build, and every
  comparison (the trial seed stands for its process), draws for each side (default 0).
- "merge_knobs": names of knobs that the fingerprint does not see: it may merge engines.
- "split": probability with which a build gets a fingerprint that no other build has: it may split engines.
- "fail_knob": true adds a knob "fail" whose values are the single failures below.
- "fail": {"-knob=value": "kind"}: failures on demand, for routes that set this knob to this value;
  the key "" means every route. "kind@gate" and "kind@time" happen in that phase instead of in
  the build; "a+b" does a, then b. Kinds: see `synthetic_failures.KINDS`.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt_search.backends.base import (
    BuildError,
    BuildOptions,
    Capabilities,
    Fingerprints,
    Placement,
    TimingRequest,
    TimingResult,
)
from gpt_search.backends.synthetic_failures import KINDS, PLANTED, SPOILS, SimulatedFailure, parse_failure
from gpt_search.domain.errors import InputError, did_you_mean
from gpt_search.domain.json_text import parse_json
from gpt_search.domain.knob import Knob, KnobDatabase
from gpt_search.domain.landscape import Landscape, planted_from_spec
from gpt_search.domain.outcome import Outcome, Phase
from gpt_search.domain.route import Route
from gpt_search.domain.streams import seed_from
from gpt_search.domain.workload import Array, GoldenPair, Workload

_LANDSCAPE = ("family", "seed", "knobs", "noise")
_FLAGS = ("gentle", "simulate_clock", "sleep", "fail_knob")
_SIZES = ("drift", "build_noise", "process_noise", "split")
_OUTPUT, _INPUT = "y", "x"
_SIZE = 16
_FAIL_KNOB = "fail"
MAX_CALLS_PER_ROUND = 1000


# -- the backend -------------------------------------------------------------------------------
class SyntheticEngine:
    """A route of a landscape, posing as an engine. `simulated` is True: its samples are not wall time."""

    simulated = True

    def __init__(self, backend: SyntheticBackend, route: Route, spoils: frozenset[str], build_seed: int) -> None:
        """Takes the truth of the route from the landscape."""
        self._backend, self._route, self._spoils, self._build_seed = backend, route, spoils, build_seed
        truth = backend.landscape.truth(backend.codes(route))
        self.fingerprint: str | None = backend.fingerprint(route, build_seed)
        changed = int((backend.codes(route) != backend.landscape.space.default).sum())
        self.size_bytes: int | None = 1_000_000 + 100_000 * changed  # a rule that tests can know
        self.memory_bytes: int | None = 1 << 20
        self._truth = truth
        self._address: tuple[int, int, str] = (0, 0, "candidate")

    def infer(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The golden output, off by the planted loss: l1 and lInf of it are that loss."""
        self._backend.act(self._route, "gate", self._truth.outcome if self._truth.failed_in == Phase.GATE else None)
        violation = self._truth.violation
        # A route that fails in the gate in another way has no loss; it does not come this far unless told so.
        loss = 0.0 if math.isnan(violation) else violation + self._backend.landscape.tolerance
        output = _golden_output(inputs) + loss * np.where(np.arange(_SIZE) % 2, 1.0, -1.0)
        if "nan" in self._spoils:
            output[3] = np.nan
        if "missing" in self._spoils:
            return {}
        return {_OUTPUT: output[:-1] if "shape" in self._spoils else output}

    def simulate_round(self, seed: int, number: int, slot: str) -> None:
        """Addresses the noise of the next `time`."""
        self._address = (seed, number, slot)

    def time(self, request: TimingRequest) -> TimingResult:
        """Samples around the planted latency; noise from the address alone. n streams finish n ** 0.2 times as much."""
        backend = self._backend
        backend.act(self._route, "time", None)
        seed, number, slot = self._address
        landscape = backend.landscape
        log_ratio = landscape.true_log_ratio(backend.codes(self._route))
        # An engine that misses the tolerance can be timed too; the landscape gives it no latency of its own.
        ratio = 1.0 if math.isnan(float(log_ratio)) else math.exp(float(log_ratio))
        rng = np.random.default_rng(seed_from("synthetic", seed, number, slot, str(self.fingerprint)))
        level = landscape.reference_ms * ratio * math.exp(landscape.noise * rng.standard_normal())
        level *= math.exp(backend.drift * math.sin(number + seed % 100))
        level *= _drawn(backend.build_noise, seed_from("synthetic build", self._build_seed, slot))
        level *= _drawn(backend.process_noise, seed_from("synthetic process", seed, slot))
        level /= request.streams**0.2
        calls = math.ceil(1000 * request.seconds / level)
        calls = max(request.min_calls, min(calls, request.max_calls, MAX_CALLS_PER_ROUND))
        samples = level * np.exp(0.3 * landscape.noise * rng.standard_normal(calls))
        if backend.sleep:
            time.sleep(float(samples.sum()) / 1000)
        return TimingResult(samples, "simulated", request.streams)

    def save(self) -> bytes:
        """The route, as JSON."""
        return json.dumps({"synthetic": self._route.items_in_order, "seed": self._build_seed}).encode()

    def close(self) -> None:
        """Nothing to free."""


class SyntheticBackend:
    """A planted landscape as a backend. See the module for its options."""

    capabilities = Capabilities(
        Fingerprints.EXACT,
        build_uses_device=False,
        placement=Placement.PAUSED_WORKER,
        metrics=("latency", "throughput"),
    )

    def __init__(self, options: str = "") -> None:
        """options: the JSON object after "synthetic:". Raises InputError for what it does not know."""
        given = _options(options)
        spec = {k: given[k] for k in _LANDSCAPE if k in given}
        self.landscape: Landscape = planted_from_spec({"family": "sparse", "seed": 0} | spec)
        for flag in _FLAGS:
            if not isinstance(given.get(flag, False), bool):
                raise InputError(f"synthetic backend: {flag!r} is {given[flag]!r}; it must be true or false")
        self.gentle, self.simulate_clock = bool(given.get("gentle")), bool(given.get("simulate_clock"))
        self.sleep, self.fail_knob = bool(given.get("sleep")), bool(given.get("fail_knob"))
        fail = given.get("fail", {})
        for name in _SIZES:
            size = given.get(name, 0.0)
            if isinstance(size, bool) or not isinstance(size, int | float) or not 0 <= size <= 1:
                raise InputError(f"synthetic backend: {name!r} is {size!r}; it must be a number from 0 to 1")
        if not isinstance(fail, Mapping):
            raise InputError('synthetic backend: \'fail\' must be an object of "-knob=value": "kind"')
        self.drift, self.build_noise, self.process_noise, self.split = (float(given.get(n, 0.0)) for n in _SIZES)
        self.merge_knobs = _names(given.get("merge_knobs", []), self.landscape.space.names)
        if self.merge_knobs or self.split:
            kind = Fingerprints.MAY_MERGE if self.merge_knobs else Fingerprints.MAY_SPLIT
            if self.merge_knobs and self.split:
                kind = Fingerprints.MAY_BOTH
            self.capabilities = replace(self.capabilities, fingerprint=kind)
        self._build_seed = 0
        self._fail = {str(token): parse_failure(kind) for token, kind in fail.items()}
        database = self.knob_database()
        for token in self._fail:
            for name, value in Route.parse(token).items():
                if (why := database[name].check(value)) is not None:
                    raise InputError(f"synthetic backend: 'fail' names -{name}={value}: {why}")

    def knob_database(self) -> KnobDatabase:
        """The landscape's knobs, and "fail" where asked for."""
        database = self.landscape.database()
        if not self.fail_knob:
            return database
        knob = Knob(_FAIL_KNOB, ("no", *KINDS), "no", "fails on demand, in the build; spoiled outputs in the gate")
        return KnobDatabase.of(database.tuner_version, (*database.knobs, knob))

    def own_workload(self, path: Path) -> tuple[Workload, Callable[[int], list[GoldenPair]]]:
        """The workload of a file that `synthetic_workload` wrote, and what makes its golden pairs.

        Raises InputError when it is not such a file, or one of another landscape.
        """
        workload = Workload(path, {_INPUT: (_SIZE,)}, name=f"{self.landscape.spec()['family']}-{path.stem}")
        self._check_workload(workload)
        return workload, synthetic_golden

    def environment(self) -> dict[str, str]:
        """The landscape stands for the device."""
        return {"backend": "synthetic", "device": json.dumps(self.landscape.spec(), sort_keys=True)}

    def codes(self, route: Route) -> NDArray[np.int16]:
        """The landscape's code vector of a route. Raises BuildError for what the landscape does not know."""
        try:
            return self.landscape.space.codes(Route(tuple(i for i in route.items_in_order if i[0] != _FAIL_KNOB)))
        except InputError as error:
            raise BuildError(str(error)) from None

    def fingerprint(self, route: Route, build_seed: int) -> str:
        """The landscape's, told apart by failures on demand, which are programs of their own; erring as asked for."""
        codes, space = self.codes(route), self.landscape.space
        for name in self.merge_knobs:
            codes[space.names.index(name)] = space.default[space.names.index(name)]
        plain = self.landscape.fingerprint(codes)
        if self.split and np.random.default_rng(seed_from("synthetic split", build_seed)).random() < self.split:
            plain += f"-{build_seed:x}"
        wanted = sorted(
            {f"{kind}@{phase}" for phase in ("build", "gate", "time") for kind in self._asked(route, phase)}
        )
        return "-".join([plain, *sorted(wanted)])

    def simulate_trial(self, route: Route, seed: int) -> dict[str, float] | None:
        """The landscape's cost of a full evaluation, in seconds by phase; None where the clock is real."""
        self._build_seed = seed  # of the build that is about to happen
        if not self.simulate_clock:
            return None
        rng = np.random.default_rng(seed_from("synthetic cost", seed))
        cost = dict(self.landscape.measure(self.codes(route), rng, Phase.TIME).cost_s)
        # Each of the later phases may be reached in a worker even where the landscape stops before it.
        return {"gate": self.landscape.costs.gate, "time": self.landscape.costs.time} | cost

    def build(self, workload: Workload, route: Route, options: BuildOptions) -> SyntheticEngine:
        """Takes the route, or fails as planted or on demand."""
        self._check_workload(workload)
        truth = self.landscape.truth(self.codes(route))
        self.act(route, "build", truth.outcome if truth.failed_in == Phase.BUILD else None)
        if self.sleep:
            time.sleep(0.005)
        return SyntheticEngine(self, route, SPOILS & frozenset(self._asked(route, "*")), self._build_seed)

    def load(self, data: bytes, workload: Workload) -> SyntheticEngine:
        """Reads what `save` wrote. Raises BuildError."""
        try:
            saved = parse_json(data)
            route = Route(tuple((str(n), str(v)) for n, v in saved["synthetic"]))
            self._build_seed = int(saved["seed"])
        except (ValueError, KeyError, TypeError) as error:
            raise BuildError(f"not an engine of the synthetic backend: {error}") from None
        return self.build(workload, route, BuildOptions())

    def _asked(self, route: Route, phase: str) -> list[str]:
        """Failures on demand for this route in a phase ("*": in any)."""
        settings = {f"-{n}={v}" for n, v in route.items()}
        kinds = [
            kind
            for token, by_phase in self._fail.items()
            if set(token.split()) <= settings
            for where, several in by_phase.items()
            if phase in (where, "*")
            for kind in several
        ]
        by_knob = route.get(_FAIL_KNOB, "no")
        if self.fail_knob and by_knob != "no" and phase in ("build", "*"):
            kinds.append(by_knob)
        return kinds

    def act(self, route: Route, phase: str, planted: Outcome | None) -> None:
        """Does what is asked for this route in this phase, then what is planted: it may not return."""
        for kind in self._asked(route, phase):
            print(f"synthetic: {kind} in phase {phase}", file=sys.stderr, flush=True)
            KINDS[kind]()
        if planted is None or planted in (Outcome.OK, Outcome.ACCURACY):
            return
        if planted == Outcome.BUILD_ERROR:
            raise BuildError("planted: the compiler refuses this route")
        if self.gentle:
            raise SimulatedFailure(planted, phase)
        KINDS[PLANTED[planted]]()

    def _check_workload(self, workload: Workload) -> None:
        try:
            spec = parse_json(workload.model.read_text())
        except OSError as error:
            raise InputError(f"{workload.model} is not a synthetic workload: {error.strerror or error}") from None
        except ValueError:
            raise InputError(
                f"{workload.model} is not a synthetic workload; "
                "gpt_search.backends.synthetic.synthetic_workload writes one"
            ) from None
        if spec != self.landscape.spec():
            mine = json.dumps(self.landscape.spec())
            raise InputError(
                f"{workload.model} holds another landscape than the backend's {mine}; "
                f"give --backend 'synthetic:{json.dumps(spec)}'"
            )


def _names(given: object, allowed: Sequence[str]) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise InputError(f"synthetic backend: 'merge_knobs' is {given!r}; it must be a list of knob names")
    for name in given:
        if name not in allowed:
            raise InputError(f"synthetic backend: 'merge_knobs' names no knob {name!r}{did_you_mean(name, allowed)}")
    return tuple(given)


def _drawn(deviation: float, seed: int) -> float:
    """A log-normal factor around 1."""
    return math.exp(deviation * np.random.default_rng(seed).standard_normal()) if deviation else 1.0


def _options(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        given = parse_json(text)
    except ValueError as error:
        raise InputError(
            f'synthetic backend: its options are a JSON object, such as {{"family": "sparse"}}: {error}'
        ) from None
    if not isinstance(given, dict):
        raise InputError(f"synthetic backend: its options are a JSON object, not {type(given).__name__}")
    allowed = (*_LANDSCAPE, *_FLAGS, *_SIZES, "merge_knobs", "fail")
    for name in given:
        if name not in allowed:
            raise InputError(
                f"synthetic backend: unknown option {name!r}{did_you_mean(name, allowed)}; "
                f"allowed: {', '.join(allowed)}"
            )
    return given


# -- its workload ------------------------------------------------------------------------------
def _golden_output(inputs: Mapping[str, Array]) -> NDArray[np.float64]:
    return 1.0 + np.asarray(inputs[_INPUT], np.float64).reshape(_SIZE)


def synthetic_workload(folder: str | Path, spec: Mapping[str, object]) -> Workload:
    """A workload for the landscape of `spec` (as `Landscape.spec`): writes `model.json` into the folder.

    Raises InputError for a wrong spec, OSError when it cannot be written.
    """
    landscape = planted_from_spec({k: v for k, v in spec.items() if k in _LANDSCAPE})
    path = Path(folder) / "model.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(landscape.spec(), sort_keys=True))
    return Workload(path, {_INPUT: (_SIZE,)}, name=f"{spec['family']}-{spec['seed']}")


def synthetic_golden(pairs: int = 2) -> list[GoldenPair]:
    """Golden pairs of any synthetic workload: an engine of the reference route meets any tolerance."""
    made = []
    for number in range(pairs):
        inputs = {_INPUT: np.linspace(0.0, 1.0 + number, _SIZE)}
        made.append(GoldenPair(inputs, {_OUTPUT: _golden_output(inputs)}))
    return made
