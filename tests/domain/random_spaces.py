"""Random knobs, databases and spaces for Hypothesis, as wild as the formats allow."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from gpt_search import Knob, KnobDatabase, SearchSpace
from gpt_search.domain.space import Dimension

_ANY = st.characters(codec="utf-8", exclude_categories=("Zs", "Zl", "Zp", "Cc"))
names = st.text(st.sampled_from("abz:_-.9é#") | _ANY, min_size=1, max_size=8).filter(
    lambda s: not any(c.isspace() or c in "=[]|*?@" for c in s)
)
values = st.text(st.sampled_from("01xyon.=-*#") | _ANY, min_size=1, max_size=5).filter(
    lambda s: s not in ("...", "*") and not any(c.isspace() or c in "[]|" for c in s)
)
whole = st.integers(-50, 50).map(str)


@st.composite
def knobs(draw: st.DrawFn, name: str) -> Knob:
    """A closed knob, or an open-ended one of each kind."""
    kind = draw(st.sampled_from(["closed", "closed", "closed", "int", "examples", "any"]))
    text = draw(st.text(max_size=3))
    if kind == "closed":
        listed = draw(st.lists(values, min_size=1, max_size=5, unique=True))
        return Knob(name, tuple(listed), draw(st.sampled_from(listed)), text)
    if kind == "int":
        return Knob(name, (), draw(whole | values), text, open_ended=True, integer=True)
    listed = draw(st.lists(whole if kind == "examples" else values, max_size=3, unique=True))
    default = draw(whole | values)
    return Knob(name, tuple(listed), default, text, open_ended=True, integer=False)


@st.composite
def databases(draw: st.DrawFn) -> KnobDatabase:
    """1 to 6 knobs."""
    return KnobDatabase(
        draw(st.text(max_size=4)),
        tuple(draw(knobs(n)) for n in draw(st.lists(names, min_size=1, max_size=6, unique=True))),
    )


@st.composite
def spaces(draw: st.DrawFn, max_knobs: int = 12, max_values: int = 5) -> SearchSpace:
    """Any space, also one in which nothing varies."""
    chosen = draw(st.lists(names, max_size=max_knobs, unique=True))
    dims = []
    for name in chosen:
        listed = draw(st.lists(values, min_size=1, max_size=max_values, unique=True))
        dims.append(
            Dimension(
                name,
                tuple(listed),
                draw(st.integers(0, len(listed) - 1)),
                draw(st.none() | st.integers(1, len(listed))),
            )
        )
    pinned = draw(st.dictionaries(names.filter(lambda n: n not in chosen), values, max_size=3))
    return SearchSpace(dims, pinned)


def draw_codes(draw: st.DrawFn, space: SearchSpace) -> np.ndarray:
    """Any code vector of a space."""
    return np.asarray([draw(st.integers(0, int(c) - 1)) for c in space.cardinalities], np.int16)
