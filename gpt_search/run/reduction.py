"""Removing what does not contribute: groups first, halved where they cannot go as a whole.

In the manner of delta debugging: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing
input", IEEE Trans. Softw. Eng. 28 (2002) 183-200. Of m items of which k are needed, about
2 k log2(m / k) + k tests are made.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

_T = TypeVar("_T", bound=Hashable)


def reduce_items(
    items: Sequence[_T], removable: Callable[[frozenset[_T]], bool], *, all_needed: bool = True
) -> list[_T]:
    """The items that remain, in their order: none of them can be removed alone any more.

    removable(removed): whether everything still holds without these; asked once for each set, and it
    decides, so a noisy answer is not asked again. all_needed: removing all of them is known not to hold.
    """
    known: dict[frozenset[_T], bool] = {frozenset(): True}
    if all_needed:
        known[frozenset(items)] = False
    removed: frozenset[_T] = frozenset()

    def try_without(group: Sequence[_T]) -> bool:
        nonlocal removed
        wanted = removed | frozenset(group)
        if wanted not in known:
            known[wanted] = removable(wanted)
        if known[wanted]:
            removed = wanted
        return known[wanted]

    def visit(group: Sequence[_T]) -> None:
        if try_without(group) or len(group) == 1:
            return
        half = len(group) // 2
        visit(group[:half])
        visit(group[half:])  # where the first half went, this set is the whole group: known, and not asked again

    if items:
        visit(items)
    while True:
        # What was needed may have been needed by something that went after it.
        before = removed
        for item in items:
            if item not in removed:
                try_without([item])
        if removed == before:
            return [item for item in items if item not in removed]
