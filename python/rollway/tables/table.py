"""Table: what a replay table is made as."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

from rollway.errors import InvalidArgument
from rollway.tables.limiters import Limiter, Queue
from rollway.tables.selectors import Fifo, Lifo, Selector, Uniform, selector_of

_MAX_NAME = 64

Native = tuple[
    str,
    int,
    tuple[str, float],
    tuple[str, float],
    int,
    tuple[int, float, float, float, int, int],
    tuple[int, int, int],
]


@dataclass(frozen=True)
class Table:
    """One table of `ReplayTables`.

    Args:
        name: What it is called.
        max_size: Items. One more removes one, which ``remover`` chooses.
        sampler: How items are chosen to be sampled.
        remover: How items are chosen to be removed.
        limiter: When inserts and samples are admitted.
        max_times_sampled: An item goes when it was sampled so often; 0: it stays.
        max_age_s: An item goes when it is older; 0: it stays.
        max_later_items: An item goes when so many came after it; 0: it stays.
        max_staleness: An item goes when the weights are more versions ahead of those that made it; 0: it stays.
    """

    name: str
    max_size: int
    sampler: Selector = field(default_factory=Uniform)
    remover: Selector = field(default_factory=Fifo)
    limiter: Limiter = field(default_factory=Limiter)
    max_times_sampled: int = 0
    max_age_s: float = 0.0
    max_later_items: int = 0
    max_staleness: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 1 <= len(self.name.encode()) <= _MAX_NAME:
            raise InvalidArgument(f"the name of a table is {self.name!r}; it must be a text of 1 to {_MAX_NAME} bytes")
        for what, most in (("max_size", 2**32 - 2), ("max_times_sampled", 2**32 - 1), ("max_later_items", 2**63)):
            _check_number(what, getattr(self, what), 1 if what == "max_size" else 0, most)
        _check_number("max_staleness", self.max_staleness, 0, 2**31 - 1)
        if not 0 <= self.max_age_s < 2**32 / 1000:
            raise InvalidArgument(f"max_age_s = {self.max_age_s!r} is out of range: 0 to 4,294,967 seconds")
        for what, value, kind in (
            ("sampler", self.sampler, Selector),
            ("remover", self.remover, Selector),
            ("limiter", self.limiter, Limiter),
        ):
            if not isinstance(value, kind):
                raise InvalidArgument(f"{what} is {value!r}; it must be a {kind.__name__}: see rollway.tables")
        if self.limiter.min_size > self.max_size:
            raise InvalidArgument(
                f"table '{self.name}' could never be sampled: min_size = {self.limiter.min_size} is more than "
                f"max_size = {self.max_size}"
            )

    @classmethod
    def queue(cls, name: str, max_size: int) -> Table:
        """A table that gives each item once, in order, and lets writers wait while it is full."""
        return cls(name, max_size, Fifo(), Fifo(), Queue(max_size), max_times_sampled=1)

    @classmethod
    def stack(cls, name: str, max_size: int) -> Table:
        """As `queue`, but the newest item first."""
        return cls(name, max_size, Lifo(), Lifo(), Queue(max_size), max_times_sampled=1)

    @property
    def native(self) -> Native:
        """For the core."""
        ages = (round(self.max_age_s * 1000), self.max_later_items, self.max_staleness)
        if self.max_age_s > 0:
            ages = (max(ages[0], 1), *ages[1:])
        return (
            self.name,
            self.max_size,
            self.sampler.native,
            self.remover.native,
            self.max_times_sampled,
            self.limiter.native,
            ages,
        )

    @classmethod
    def of_native(cls, native: Native) -> Table:
        """The table that is there in memory."""
        name, max_size, sampler, remover, max_times_sampled, limiter, (age_ms, later, staleness) = native
        return cls(
            name,
            max_size,
            selector_of(sampler),
            selector_of(remover),
            Limiter(*limiter),
            max_times_sampled,
            age_ms / 1000,
            later,
            staleness,
        )


def _check_number(what: str, value: Any, least: int, most: int) -> None:
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidArgument(f"{what} is {value!r}; it must be a whole number") from None
    if not least <= number <= most:
        raise InvalidArgument(f"{what} = {number} is out of range: {least} to {most}")
