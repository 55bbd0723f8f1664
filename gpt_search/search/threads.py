"""One BLAS thread while a strategy thinks.

The matrices of a strategy are small: threads gain nothing, and they lose much where other work wants the cores. That
work may be a timing: a builder waits for its turn beside the strategy, and BLAS threads spin while they wait for more.
A sum over several threads may be rounded otherwise too, and a study would go another way on a machine with more cores.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import lru_cache
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController


class OneBlasThread:
    """A context in which the BLAS libraries of this process use one thread; afterwards as many as before.

    NumPy's counts from the start, SciPy's from the first `cover` after it was loaded: loading it here would take longer
    than most simulated studies.
    """

    def __enter__(self) -> Self:
        """Limits what is loaded."""
        self._stack, self._scipy = ExitStack(), False
        self._limit()
        return self

    def __exit__(self, *error: object) -> None:
        """As many threads as before."""
        self._stack.close()

    def cover(self) -> None:
        """Limits SciPy's library too where it has been loaded by now; cheap, to be called before every proposal."""
        if not self._scipy and _scipy_loaded():
            self._limit()

    def _limit(self) -> None:
        self._scipy = _scipy_loaded()
        self._stack.enter_context(_libraries(self._scipy).limit(limits=1, user_api="blas"))


def _scipy_loaded() -> bool:
    return "scipy.linalg" in sys.modules


@lru_cache(maxsize=2)
def _libraries(scipy: bool) -> ThreadpoolController:
    """The loaded libraries; looking for them takes 8 ms, a limit 20 us. scipy: whether its own is among them."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
