"""GroupSender: the environment's end. Gives each group a key, and sends it completely or sends a tombstone.

The run in a key is ``name:number``, with a random number for each sender. The instance is the name of the item, and the
step counts how often this sender has sent it before: the epoch, in an environment that goes through its dataset. So no
two groups have the same key: not in the next epoch, not from two processes with the same dataset, and not after a
restart, when a killed environment has left an incomplete group.

Once the first record of a group is sent, a cancelled task sends the rest before it ends.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from rollway.errors import ConnectionClosedError, PeerDied, RecordTooLarge, RingFull
from rollway.integrations.atropos.encoding import EncodedRecord, encode_group
from rollway.integrations.atropos.identity import as_text
from rollway.records import metadata as record_metadata
from rollway.records.key import GroupKey, RecordKey
from rollway.waiting.peer_watch import LearnerWatch

PHASE = "train"  # evaluation stays inside the environment: Atropos sends none of it
_ALONE_S = 60.0  # how long an environment waits for a new learner after one died
_LONGEST_REASON = 1000  # characters: an error may quote a whole group
_REMEMBERED = 1 << 20  # instances whose visits are counted


class GroupSender:
    """Sends groups through one `ShmRecordClient` of `ATROPOS_SCHEMA`. For one event loop; `close` leaves the learner.

    Args:
        client: Its records go to the learner.
        name: First half of the run in the keys.
    """

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._lane_bytes: int | None = None
        self.run = f"{name}:{secrets.token_hex(4)}"
        self.groups_sent = 0
        self._turn = asyncio.Lock()
        self._visits: dict[str, int] = {}  # by instance; the one that was sent longest ago is first
        self._alone_since: float | None = None
        self._forgotten = 0  # the visits of an instance that is counted no more are fewer

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more: closed here, or by the learner."""
        return bool(self._client.closed)

    @property
    def published_version(self) -> int:
        """The learner's step, as last published by it."""
        return int(self._client.published_version)

    def status(self) -> tuple[int, int]:
        """The learner's step, and how many records, of all environments, wait to be taken by it.

        The count is not older than the step, so it has no record that an earlier step has used. Raises
        `ConnectionClosedError` when the learner has closed, and `PeerDied` when it died and none came back in a minute.
        """
        self._check_open()
        self._alone_since = LearnerWatch(self._client.learners, self._client.is_orphaned, _ALONE_S).check(
            self._alone_since
        )
        step = self.published_version
        return step, int(self._client.stats()["ready_records"])

    async def send(
        self,
        group: Mapping[str, Any],
        instance_id: str | int,
        version: int,
        begun: Callable[[], None] = lambda: None,
    ) -> GroupKey:
        """Sends a group, and returns when its last record is sent. A task cancelled before the first one sends nothing.

        ``begun`` is called after the first record: from then on, the group or a tombstone reaches the learner.

        Raises if a group cannot be sent completely, after a tombstone: `RecordTooLarge` if it is larger than a lane.
        `TypeError`, without a tombstone, if ``instance_id`` is neither text nor a whole number.
        """
        key = self._next_key(instance_id)
        try:
            records = encode_group(group)
            self._check_room(records)
            async with self._turn:
                await self._send_one(key, 0, records[0], version)
                begun()
                await _uninterrupted(self._send_rest(key, records, version))
        except PeerDied:
            raise  # no learner would read a tombstone
        except Exception as error:
            await self._send_tombstone(key, version, str(error))
            raise
        return key

    async def tombstone(self, instance_id: str | int, version: int, reason: str) -> GroupKey:
        """Tells the learner that a group of this instance will not come."""
        key = self._next_key(instance_id)
        await self._send_tombstone(key, version, reason)
        return key

    def close(self) -> None:
        """Closes the client. The learner can still read what was sent."""
        self._client.close()

    def _check_open(self) -> None:
        if self.closed:
            raise ConnectionClosedError("the learner has closed the records")

    def _check_room(self, records: Sequence[EncodedRecord]) -> None:
        """Checks that a whole group fits into a lane, because the learner holds its records until the last one came."""
        if self._lane_bytes is None:  # over TCP it is known after the connection is made, if it is below 1 GiB
            self._lane_bytes = self._client.stats().get("lane_bytes")
        if self._lane_bytes is None:
            return
        needed = sum(map(_bytes_of, records))
        if needed > self._lane_bytes:
            raise RecordTooLarge(
                f"a group of {len(records)} trajectories, {needed:,} bytes in all, does not fit into a lane of "
                f"{self._lane_bytes:,}. Create the records with a larger lane_bytes, or send smaller groups"
            )

    def _next_key(self, instance_id: str | int) -> GroupKey:
        name = as_text(instance_id)
        step = self._visits.pop(name, self._forgotten)
        self._visits[name] = step + 1
        if len(self._visits) > _REMEMBERED:  # an environment that generates its items never repeats one
            oldest = next(iter(self._visits))
            self._forgotten = max(self._forgotten, self._visits.pop(oldest))
        return GroupKey(self.run, PHASE, step, name)

    async def _send_rest(self, key: GroupKey, records: Sequence[EncodedRecord], version: int) -> None:
        for repetition in range(1, len(records)):
            await self._send_one(key, repetition, records[repetition], version)
        self.groups_sent += 1

    async def _send_one(self, key: GroupKey, repetition: int, record: EncodedRecord, version: int) -> None:
        name = RecordKey(*key, repetition)
        if not await self._client.send_async(record.data, key=name, metadata=record.metadata, version=version):
            raise RingFull(f"the learner's policy dropped {name}: records of groups need on_full='block'")

    async def _send_tombstone(self, key: GroupKey, version: int, reason: str) -> None:
        try:
            await _uninterrupted(self._client.tombstone_async(key.whole, reason[:_LONGEST_REASON], version=version))
        except ConnectionClosedError:
            return  # no learner would read it


class TcpGroupSender(GroupSender):
    """Sends groups through one `TcpRecordClient`."""

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more: closed here, or lost for good."""
        return bool(self._client.closed or self._client.over)

    def status(self) -> tuple[int, int]:
        """As of the learner's last answer, plus what is on its way there. Each call asks for the next answer."""
        self._check_open()
        step, waiting = self._client.learner_news()
        return int(step), int(waiting)


def _bytes_of(record: EncodedRecord) -> int:
    """The least number of bytes that a record takes."""
    return sum(array.nbytes for array in record.data.values()) + len(record_metadata.encode(record.metadata))


async def _uninterrupted(work: Coroutine[Any, Any, Any]) -> None:
    """Waits for the work even if this task is cancelled meanwhile; then raises the cancellation."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
