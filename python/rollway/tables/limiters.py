"""Limiters: when a table admits an insert, and when a sample. Whoever is not admitted waits."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from rollway.errors import InvalidArgument

_ANY = sys.float_info.max


@dataclass(frozen=True)
class Limiter:
    """What a table admits, as in Reverb's ``RateLimiter``.

    With *diff* = inserts x ``samples_per_insert`` - samples, an insert waits while it would bring diff above
    ``max_diff``, and a sample waits while it would bring diff below ``min_diff``. Before the table has ``min_size``
    items, nothing is sampled and every insert is admitted.

    ``samples_per_insert``: 0 counts nothing. ``items_per_version``: more than 0 lets an insert wait, too, while the
    table was given ``(version + versions_ahead + 1) * items_per_version`` items, where the version is that of the last
    `ReplayTables.note_version`.

    A limiter with which nobody could ever go on is refused here.
    """

    min_size: int = 1
    samples_per_insert: float = 0.0
    min_diff: float = -_ANY
    max_diff: float = _ANY
    items_per_version: int = 0
    versions_ahead: int = 0

    def __post_init__(self) -> None:
        numbers = (self.samples_per_insert, self.min_diff, self.max_diff)
        if self.min_size < 1 or self.items_per_version < 0 or self.versions_ahead < 0:
            raise InvalidArgument(f"{self}: min_size must be at least 1, and no number negative")
        if any(math.isnan(number) for number in numbers) or self.samples_per_insert < 0:
            raise InvalidArgument(f"{self}: samples_per_insert must be at least 0, and no bound NaN")
        # Just below the diff that admits a sample, an insert must be admitted. Whole numbers have a last one there.
        is_whole = all(float(number).is_integer() for number in numbers)
        need = max(self.samples_per_insert, 1.0) if is_whole else self.samples_per_insert + 1
        if self.samples_per_insert and self.max_diff - self.min_diff < need:
            raise InvalidArgument(
                f"max_diff - min_diff = {self.max_diff - self.min_diff}: inserts and samples could wait for each other "
                f"for ever. It must be at least {need}"
            )

    @property
    def most_at_once(self) -> float:
        """The most items that one call can ever sample."""
        if not self.samples_per_insert:
            return math.inf
        return max(self.max_diff, self.min_size * self.samples_per_insert) - self.min_diff

    @property
    def native(self) -> tuple[int, float, float, float, int, int]:
        """For the core."""
        bounded = [float(max(min(bound, _ANY), -_ANY)) for bound in (self.min_diff, self.max_diff)]
        return (
            self.min_size,
            float(self.samples_per_insert),
            bounded[0],
            bounded[1],
            self.items_per_version,
            self.versions_ahead,
        )


def MinSize(min_size: int) -> Limiter:
    """Samples wait until the table has so many items."""
    return Limiter(min_size)


def SamplesPerInsert(samples_per_insert: float, min_size: int, error_buffer: float) -> Limiter:
    """Keeps samples and inserts at a ratio, give or take ``error_buffer`` samples."""
    if samples_per_insert <= 0:
        raise InvalidArgument(f"samples_per_insert is {samples_per_insert!r}; it must be more than 0")
    if error_buffer < max(1.0, samples_per_insert):
        raise InvalidArgument(
            f"error_buffer is {error_buffer!r}; it must be at least {max(1.0, samples_per_insert)}, or inserts and "
            "samples would wait for each other"
        )
    middle = min_size * samples_per_insert
    return Limiter(min_size, samples_per_insert, middle - error_buffer, middle + error_buffer)


def Queue(size: int) -> Limiter:
    """As many samples as inserts; writers wait while ``size`` items were not sampled. For a table whose items go when
    they are sampled (``max_times_sampled=1``).
    """
    return Limiter(1, 1.0, 0.0, float(size))


def Versions(items_per_version: int, versions_ahead: int = 0, min_size: int = 1) -> Limiter:
    """Writers that have made all items that the present weights may make wait for new ones: so nothing is made that is
    thrown away because it is stale.
    """
    if items_per_version < 1:
        raise InvalidArgument(f"items_per_version is {items_per_version!r}; it must be at least 1")
    return Limiter(min_size, items_per_version=items_per_version, versions_ahead=versions_ahead)
