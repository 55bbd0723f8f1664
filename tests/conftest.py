"""For all tests: Hypothesis without deadlines, since how long an example takes says nothing on a shared machine.

BLAS has one thread: the runner uses all cores already, and small matrices gain nothing from more. Ctrl-C and a hang-up
are ignored by what runs in the background or under nohup, and by all that it starts: tests that send them would wait in
vain.
"""

import os
import signal

for _library in ("OPENBLAS", "OMP", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

for _number, _handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

from hypothesis import settings  # noqa: E402

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
