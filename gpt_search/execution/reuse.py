"""What a study knows of an engine that a route gives again, and what becomes of its samples."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from gpt_search.domain.evaluation import Evaluation


class Reuse(enum.Enum):
    """What becomes of an engine's earlier samples when a route's build gives its fingerprint again."""

    TAKE = "they stand for the route too"
    EXTEND = "they stand for the route too; where the racing rule wants more of them, more are added"
    ADD = "more are added, and all of them stand for the route"
    CHECK = "the route is timed by itself, to be compared with them"
    NOTHING = "the route is timed by itself"


class Earlier(NamedTuple):
    """What a study knows of an engine. trial: that began its samples. found: of it, with all samples so far."""

    trial: int
    found: Evaluation
    reuse: Reuse


Known = Callable[[str], Earlier | None]


def nothing_known(fingerprint: str) -> Earlier | None:
    """The `known` of a study that times every engine itself."""
    return None
