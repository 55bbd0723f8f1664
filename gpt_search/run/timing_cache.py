"""The frozen cache of a study: written by a build of the reference, and read by every build after it.

A builder that remembers the timings of tactics makes a build depend on what was built before. All builds of a
study therefore start from one cache; its digest is part of the study's options, and so of every record's key.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpt_search.domain.digest import digest_of, digest_of_file
from gpt_search.domain.errors import InputError
from gpt_search.domain.route import Route
from gpt_search.domain.workload import Workload
from gpt_search.execution.describe import Description
from gpt_search.execution.devices import DeviceLock, build_lock_shared
from gpt_search.execution.launcher import Worker, WorkerFailed, WorkerSpec

_MODE, _FILE, _DIGEST = "timing_cache", "timing_cache_file", "timing_cache_digest"


def with_timing_cache(
    backend: str, description: Description, workload: Workload, reference: Route, folder: Path, timeout_s: float
) -> Mapping[str, object]:
    """The checked options with the cache's file in them; a frozen one is made where it is not there yet.

    folder: where caches are kept. Options are given back as they are where the backend has no such cache, and where the
    user wants none. Raises InputError when the reference cannot be built, and when options name a file of their own.
    """
    options = dict(description.options)
    if given := [name for name in (_FILE, _DIGEST) if name in options]:
        raise InputError(f"the option {given[0]} is set by gpt-search itself; leave it out")
    mode = options.get(_MODE, "frozen")
    if not description.frozen_cache or mode == "none":
        return options
    name = digest_of([workload.digest, backend, dict(description.environment), options, str(reference)])[:16]
    path = (folder / f"{name}.cache").absolute()
    options[_FILE] = str(path)
    if mode == "shared":
        return options
    if not path.is_file():
        build = {"slot": "only", "route": [list(item) for item in reference.items_in_order], "seed": 0}
        try:
            with Worker(WorkerSpec(backend, workload, options=options)) as worker:
                device = worker.ready["device_id"]
                with DeviceLock(device).hold(shared=build_lock_shared(device)):  # as for every other build
                    worker.ask("build", build, timeout_s=timeout_s, phase="build")
        except WorkerFailed as error:
            words = " ".join(error.message.split())
            raise InputError(f"the reference route cannot be built ({error.outcome.name}): {words}") from None
    options[_DIGEST] = digest_of_file(path)
    return options
