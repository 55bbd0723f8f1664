"""Where a timing cache is kept between the builds of a study.

The builder times tactics and remembers them. A cache that grows from route to route makes a build depend on
what was built before; a frozen one does not.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from gpt_search.backends.tensorrt_options import TensorRTOptions
from gpt_search.domain.errors import InputError


class CacheStore:
    """The study's file, or this process's memory where there is none."""

    def __init__(self, options: TensorRTOptions, memory: dict[str, bytes], key: str) -> None:
        """memory: where caches without a file are kept, under `key`."""
        self._path = Path(options.timing_cache_file) if options.timing_cache_file is not None else None
        self._options, self._memory, self._key = options, memory, key

    @contextmanager
    def opened(self) -> Iterator[bytes | None]:
        """The cache to start from, None where there is none yet.

        Under a lock while a file is still to be written, so that two workers do not each make a frozen cache.
        Raises InputError when a frozen file is not the one that the study began with.
        """
        if self._path is None:
            yield self._memory.get(self._key)
            return
        if self._options.timing_cache == "frozen" and self._path.is_file():
            yield self._frozen(self._path.read_bytes())
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = self._path.read_bytes() if self._path.is_file() else None
            yield self._frozen(known)

    def _frozen(self, data: bytes | None) -> bytes | None:
        wanted = self._options.timing_cache_digest
        found = None if data is None else sha256(data).hexdigest()
        if wanted is not None and found != wanted:
            state = "is no longer there" if data is None else "is not what it was when the study began"
            raise InputError(f"the study's frozen timing cache {self._path} {state}; restore it, or start a new study")
        return data

    def keep(self, data: bytes) -> None:
        """Stores a cache, whole or not at all."""
        if self._path is None:
            self._memory[self._key] = data
            return
        partial = self._path.with_suffix(".partial")
        partial.write_bytes(data)
        partial.replace(self._path)
