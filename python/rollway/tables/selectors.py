"""Selectors: how a table chooses an item, to sample it or to remove it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from rollway.errors import InvalidArgument


@dataclass(frozen=True)
class Selector:
    """Chooses an item. Use one of its subclasses."""

    kind: ClassVar[str]

    @property
    def native(self) -> tuple[str, float]:
        """For the core."""
        return self.kind, 0.0


@dataclass(frozen=True)
class Fifo(Selector):
    """The oldest item."""

    kind: ClassVar[str] = "fifo"


@dataclass(frozen=True)
class Lifo(Selector):
    """The newest item."""

    kind: ClassVar[str] = "lifo"


@dataclass(frozen=True)
class Uniform(Selector):
    """Any item, with the same chance."""

    kind: ClassVar[str] = "uniform"


@dataclass(frozen=True)
class Prioritised(Selector):
    """Any item, with a chance in proportion to ``priority ** exponent``. Where all are 0, any with the same chance."""

    exponent: float = 1.0
    kind: ClassVar[str] = "prioritised"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.exponent) and self.exponent >= 0):
            raise InvalidArgument(f"exponent is {self.exponent!r}; it must be a number of at least 0")

    @property
    def native(self) -> tuple[str, float]:
        """For the core."""
        return self.kind, float(self.exponent)


@dataclass(frozen=True)
class MinHeap(Selector):
    """The item of the least priority; of equal ones, the oldest."""

    kind: ClassVar[str] = "min_heap"


@dataclass(frozen=True)
class MaxHeap(Selector):
    """The item of the greatest priority; of equal ones, the oldest."""

    kind: ClassVar[str] = "max_heap"


_KINDS: dict[str, type[Selector]] = {cls.kind: cls for cls in (Fifo, Lifo, Uniform, MinHeap, MaxHeap)}


def selector_of(native: tuple[str, float]) -> Selector:
    """The selector that a table in memory has."""
    kind, exponent = native
    return Prioritised(exponent) if kind == Prioritised.kind else _KINDS[kind]()
