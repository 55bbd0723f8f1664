"""How much memory a worker's process tree uses, and how to tell that an allocation failed."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from gpt_search.execution.supervisor import descendants

_SEARCHED = 50_000
_PAGE = os.sysconf("SC_PAGE_SIZE")
_NO_MEMORY = re.compile(
    r"bad_alloc|bad_array_new_length|failed to allocate memory|cannot allocate memory|unable to allocate|"
    r"out of memory|resource_exhausted|\bMemoryError\b",
    re.IGNORECASE,
)


def says_no_memory(text: str) -> bool:
    """True when a message of a compiler or of the C++ run time says that an allocation failed."""
    # The ends of a long text only: the search takes 0.1 s a megabyte, and a message may be a dump.
    return any(_NO_MEMORY.search(part) is not None for part in (text[:_SEARCHED], text[-_SEARCHED:]))


def oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it was booted; 0 where it does not tell."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def tree_memory(root: int, limit: int) -> int:
    """Bytes of memory of all descendants of `root`: resident, or the proportional share where that is over `limit`.

    Resident memory is cheap to read and counts shared pages once per process; the proportional share
    (PSS, swap included) counts them once, and is read only where it decides.
    """
    tree = descendants(root)
    resident = 0
    for pid in tree:
        with contextlib.suppress(OSError, ValueError, IndexError):
            resident += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    if resident <= limit:
        return resident
    proportional = 0
    for pid in tree:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Pss:", "SwapPss:")):
                    proportional += int(line.split()[1]) * 1024
    return proportional or resident
