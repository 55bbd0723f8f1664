"""Removing what does not contribute: groups first, halved where they cannot go as a whole.

`reduce_items` needs to know only whether a removal is good. In the manner of delta debugging: Zeller and Hildebrandt,
"Simplifying and isolating failure-inducing input", IEEE Trans. Softw. Eng. 28 (2002) 183-200. Of m items of which k
are needed, about 2 k log2(m / k) + k tests are made.

`without_effect` is for what can be told apart: what is left after each removal. One answer then says something about
both halves of a group, so about k log2(m / k) + k are needed.
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


def without_effect(items: Sequence[_T], left_by: Callable[[frozenset[_T]], Hashable | None]) -> frozenset[_T]:
    """The items that seem to have no effect.

    Items are removed one after the other, in their order: where what is left is the same before and after a stretch of
    them, that stretch did nothing. It is bisected, the longest stretch first. An item that does nothing there may do
    something beside others, and effects may cancel, so whoever calls this looks once more at the removal of all.

    left_by(removed): what is left without these, None where that is not known, which equals nothing. Asked once for
    each set.
    """
    left = {0: left_by(frozenset()), len(items): left_by(frozenset(items))}
    inert: set[_T] = set()
    stretches = [(len(items), 0)] if items else []
    while stretches:
        length, begin = stretch = max(stretches)
        stretches.remove(stretch)
        end = begin + length
        if left[begin] is not None and left[begin] == left[end]:
            inert.update(items[begin:end])
        elif length > 1:
            middle = begin + length // 2
            left[middle] = left_by(frozenset(items[:middle]))
            stretches += [(middle - begin, begin), (end - middle, middle)]
    return frozenset(inert)


def same_engine(
    items: Sequence[_T],
    engine: Callable[[frozenset[_T]], Hashable | None],
    checked: Callable[[frozenset[_T]], Hashable | None] | None = None,
) -> frozenset[_T]:
    """The items that can all be removed with the engine staying as it is; no other can be removed beside them.

    engine(removed): what is built without these, None where that is not known; may be asked again for a set. checked:
    the same, for removals that are made where it equals the whole.
    """
    whole, checked = engine(frozenset()), checked or engine
    gone: frozenset[_T] = frozenset()

    def same(removed: frozenset[_T]) -> bool:
        nonlocal gone
        equal = whole is not None and checked(removed) == whole
        if equal:
            gone = removed
        return equal

    seeming = without_effect(items, engine)
    reduce_items([item for item in items if item in seeming], same, all_needed=False)
    # What had an effect beside other removals may have none beside these.
    again = True
    while again:
        again = False
        for item in items:
            if item not in gone and same(gone | {item}):
                again = True
    return gone
