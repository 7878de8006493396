"""Windows: which steps of an item each column of a batch has.

An item is made of the last steps of a writer. A column takes some of them, of one leaf: one step, by its place, or a
slice of steps. Places are as in a Python list of the item's steps.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from rollway.errors import InvalidArgument

Column = tuple[str, int, bool, list[tuple[int, int]]]
"""For the core: the name, the number of the leaf, whether it is one step, and (first step, how many) of each slice."""


def whole(leaves: list[str]) -> list[Column]:
    """Every step of every leaf."""
    return [(name, number, False, [(0, -(2**63))]) for number, name in enumerate(leaves)]


def columns_of(given: Mapping[str, tuple[str, int | slice]], steps: int, leaves: list[str]) -> list[Column]:
    """The columns of items of so many steps: for each its leaf, and a place or a slice."""
    columns: list[Column] = []
    for name, form in given.items():
        try:
            leaf, where = form
            number = leaves.index(leaf)
        except (TypeError, ValueError):
            raise InvalidArgument(
                f"column '{name}' is {form!r}; it must be a pair of a leaf ({', '.join(leaves)}) and a place or slice, "
                "like ('obs', -1) or ('obs', slice(0, 4))"
            ) from None
        if isinstance(where, slice):
            first, end, stride = where.indices(steps)
            if stride != 1 or end <= first:
                raise InvalidArgument(
                    f"column '{name}' has {where} of {steps} steps: it must be one step or more, in order"
                )
            columns.append((name, number, False, [(first, end - first)]))
        else:
            columns.append((name, number, True, [(_place(name, where, steps), 1)]))
    if not columns:
        raise InvalidArgument("an item needs a column: {'obs': ('obs', 0), …}")
    return columns


def _place(name: str, where: Any, steps: int) -> int:
    try:
        place = operator.index(where)
    except TypeError:
        raise InvalidArgument(f"column '{name}' has {where!r}: it must be a place or a slice") from None
    if not -steps <= place < steps:
        raise InvalidArgument(f"column '{name}' has step {place} of an item of {steps} steps")
    return place % steps
