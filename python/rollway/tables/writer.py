"""Writer: appends steps, and makes items of the last of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from rollway._core import Tables, TablesWriter
from rollway.errors import InvalidArgument, WaitTimeout
from rollway.tables.windows import columns_of, whole

_Waiting = Callable[[int, str], str]


class Writer:
    """One stream of steps. Each thread needs its own. `ReplayTables.writer` makes it.

    >>> import numpy as np
    >>> from rollway.tables import ReplayTables, Table
    >>> with ReplayTables({"obs": np.zeros(2, np.float32), "reward": 0.0}, [Table("main", 100)], seed=0) as tables:
    ...     with tables.writer(history=3) as writer:
    ...         for step in range(5):
    ...             writer.append({"obs": [step, step], "reward": step})
    ...             if step >= 2:
    ...                 key = writer.insert("main", steps=3)  # overlapping items share their steps
    ...     batch = tables["main"].sample(4)
    ...     batch.data["obs"].shape, bool((np.diff(batch.data["reward"]) == 1).all())
    ((4, 3, 2), True)
    """

    def __init__(self, core: Tables, names: list[str], leaves: list[str], history: int, waiting: _Waiting) -> None:
        self._core = core
        self._writer: TablesWriter = core.writer(history)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._leaves = leaves
        self._waiting = waiting
        self._patterns: dict[Any, int] = {}
        self.history = history
        """How many of the last steps an item can be made of."""

    def append(self, step: Any, *, timeout: float | None = None) -> None:
        """Appends one step, in any form that a sample may have.

        Waits only when there is no room because items of queues need every step; `WaitTimeout` when that takes longer
        than ``timeout`` seconds.
        """
        self._append(step, False, timeout)

    def append_many(self, steps: Any, *, timeout: float | None = None) -> None:
        """Appends steps that are stacked: every leaf has one more dimension in front."""
        self._append(steps, True, timeout)

    def _append(self, steps: Any, stacked: bool, timeout: float | None) -> None:
        if not self._writer.append(steps, stacked, timeout):
            raise WaitTimeout(
                f"no step could be appended to '{self._core.name}' for {timeout} s: items that were not sampled yet "
                f"need all {self._core.steps()[0]} steps. Sample them, or give the tables a larger max_steps"
            )

    def insert(
        self,
        table: str,
        steps: int = 1,
        *,
        columns: Mapping[str, tuple[str, int | slice]] | None = None,
        priority: float = 1.0,
        version: int = 0,
        skip: int = 0,
        timeout: float | None = None,
    ) -> int:
        """Makes an item of the last ``steps`` steps, and puts it into a table. Returns its key.

        ``columns``: what a batch shall have of it, each a leaf and a place or slice of the item's steps:
        ``{"obs": ("obs", 0), "reward": ("reward", slice(0, 3)), "next_obs": ("obs", -1)}``. Left out, every step of
        every leaf. ``skip``: leaves out so many of the last steps. ``version``: of the weights that made the steps.

        Waits until the table's limiter admits it. `WaitTimeout` says who it waits for when that takes longer than
        ``timeout`` seconds.
        """
        number = self._number(table)
        if not (math.isfinite(priority) and priority >= 0):
            raise InvalidArgument(f"priority is {priority!r}; it must be a number of at least 0")
        pattern = self._pattern(steps, columns)
        key = self._writer.insert(number, steps, skip, pattern, float(priority), version, timeout)
        if key is None:
            raise WaitTimeout(self._waiting(number, f"no item was admitted for {timeout} s"))
        return key

    def _number(self, table: str) -> int:
        try:
            return self._numbers[table]
        except KeyError:
            raise InvalidArgument(f"there is no table '{table}': there is {', '.join(self._numbers)}") from None

    def _pattern(self, steps: int, columns: Mapping[str, tuple[str, int | slice]] | None) -> int:
        if columns is None:
            pattern = self._patterns.get(None)
            if pattern is None:
                pattern = self._patterns[None] = self._core.pattern(whole(self._leaves))
            return pattern
        forms = columns_of(columns, steps, self._leaves)
        cached = tuple((name, leaf, single, tuple(slices)) for name, leaf, single, slices in forms)
        pattern = self._patterns.get(cached)
        if pattern is None:
            pattern = self._patterns[cached] = self._core.pattern(forms)
        return pattern

    @property
    def steps(self) -> int:
        """How many steps were appended."""
        return self._writer.steps

    def close(self) -> None:
        """Lets go of the steps. Items that were made of them stay."""
        self._writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
