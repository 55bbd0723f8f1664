"""What a backend says of itself, asked in a worker: a compiler library that crashes must not take the caller along."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpt_search.backends.base import Fingerprints
from gpt_search.backends.registry import availability, file_of
from gpt_search.domain.digest import digest_of_file
from gpt_search.domain.errors import InputError
from gpt_search.domain.knob import KnobDatabase
from gpt_search.execution.environment import environment
from gpt_search.execution.launcher import Worker, WorkerFailed, WorkerSpec

_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Description:
    """database: the installed compiler's knobs. environment: what must be equal for records to be comparable.

    own_workload: whether the backend has a form of model of its own, and the method `own_workload` that reads it.
    metrics: what it can time (`Capabilities.metrics`).
    options: build options, checked, in the form that records keep. cannot_run: why engines can be built here, but not
    run; None where they can. frozen_cache: whether the builds of a study start from one cache.
    """

    database: KnobDatabase
    environment: Mapping[str, str]
    fingerprint: Fingerprints
    own_workload: bool = False
    metrics: tuple[str, ...] = ("latency",)
    options: Mapping[str, object] = field(default_factory=dict)
    cannot_run: str | None = None
    frozen_cache: bool = False


def describe_backend(name: str, options: Mapping[str, object] | None = None) -> Description:
    """Starts a worker, asks, ends it.

    options: build options to be checked. Raises InputError when the backend cannot be used here, with the
    reason, or when an option is wrong.
    """
    why = availability(name)
    if why is not None:
        raise InputError(f"the backend {name!r} cannot be used here: {why}")
    try:
        with Worker(WorkerSpec(name, options=options or {})) as worker:
            answer = worker.ask("describe", timeout_s=_TIMEOUT_S, phase="describe")
            ready = worker.ready
    except WorkerFailed as error:
        words = " ".join(error.message.split())
        raise InputError(f"the backend {name!r} cannot be used here: {words}") from None
    facts = dict(ready["environment"])
    if (file := file_of(name)) is not None:  # a compiler's version says nothing about the code that calls it
        facts["backend_file"] = digest_of_file(file)
    return Description(
        KnobDatabase.from_json(answer.fields["database"]),
        environment(facts),
        Fingerprints[ready["fingerprint"]],
        ready["own_workload"],
        tuple(ready["metrics"]),
        answer.fields["options"],
        answer.fields["cannot_run"],
        answer.fields["frozen_cache"],
    )
