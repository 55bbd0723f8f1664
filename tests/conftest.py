"""For all tests: Hypothesis without deadlines, since how long an example takes says nothing on a shared machine.

BLAS has one thread: the runner uses all cores already, and small matrices gain nothing from more.
"""

import os

for _library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

from hypothesis import settings  # noqa: E402

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
