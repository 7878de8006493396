"""AsyncSends: the asyncio versions of a client's blocking sends, the same for every kind of client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import optree

from rollway.errors import WaitTimeout
from rollway.schema.arrays import as_array
from rollway.waiting.peer_watch import deadline_of, notified
from rollway.waiting.room import SentCount, WaitsForRoom

if TYPE_CHECKING:
    from rollway._core import SampleSends

    class _Client(SampleSends, WaitsForRoom, Protocol):
        """What a client brings."""

        async def _wait_for_room(self, deadline: float | None, timeout: float | None) -> None: ...


def _rows_after(leaf: Any, rows: int) -> Any:
    """A stacked leaf without its first rows."""
    return (leaf if hasattr(leaf, "__getitem__") else as_array(leaf, "", None))[rows:]


class AsyncSends:
    """Waits for a notification and then tries, so a cancelled wait has sent nothing."""

    async def send_async(self: _Client, data: Any, *, version: int = 0, timeout: float | None = None) -> bool:
        """As `send`, for asyncio. A cancelled wait sends nothing."""
        if not self.blocks:
            return self.send(data, version=version)
        deadline = deadline_of(timeout)
        while not self.try_send(data, version=version):
            await self._wait_for_room(deadline, timeout)
        return True

    async def send_many_async(self: _Client, data: Any, *, version: int = 0, timeout: float | None = None) -> int:
        """As `send_many`, for asyncio. When it fails or is cancelled, ``error.sent`` samples are sent.

        A task that is cancelled before it ran has sent nothing, and its `CancelledError` has no ``sent``. The
        `TimeoutError` of `asyncio.timeout` and `asyncio.wait_for` has the `CancelledError` as its cause.
        """
        if not self.blocks:
            return self.send_many(data, version=version)
        deadline, rest = deadline_of(timeout), data
        with SentCount() as count:
            while True:
                count.sent += (now := self.try_send_many(rest, version=version))
                rest = optree.tree_map(lambda leaf: _rows_after(leaf, now), rest, namespace="rollway")
                if len(optree.tree_leaves(rest, namespace="rollway")[0]) == 0:
                    return count.sent
                await self._wait_for_room(deadline, timeout)

    async def _wait_for_room(self: _Client, deadline: float | None, timeout: float | None) -> None:
        if not await notified(self._notifier, deadline, self._learner_watch):
            raise WaitTimeout(self._no_room(timeout))
