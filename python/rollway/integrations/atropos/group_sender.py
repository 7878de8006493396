"""GroupSender: an environment's end of the line. It names groups, and sends each of them whole or says what is missing.

Keys. The run of a key is ``name:incarnation``: the second half is random, made anew by each sender. The instance is
what the item says, and the step counts how often this sender has named it before: in an environment that goes through
its dataset, the epoch. So no two groups ever have the same key: not in the next epoch, not from two processes with the
same dataset, and not after a restart, when the half group that a killed environment left must stay half.

A group leaves whole unless the process dies: once its first record is out, cancelling the sender's task waits for the
last; and where that fails, a tombstone says that the group will not be whole.
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
_ALONE_S = 60.0  # how long an environment waits for a learner that died
_LONGEST_REASON = 1000  # characters: an error may quote a whole group
_REMEMBERED = 1 << 20  # instances of which the visits are counted


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
        self._visits: dict[str, int] = {}  # by instance, the one that was named longest ago first
        self._alone_since: float | None = None
        self._forgotten = 0  # more visits than any instance has that was forgotten

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

        The count is not older than the step, so no record is in it that an earlier step has used.
        `ConnectionClosedError` at the end; `PeerDied` when the learner is dead, and nobody has come back to the records
        for a minute.
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
        """Sends a group; returns when its last record is out. A task cancelled before the first record sends nothing.

        ``begun`` is called when the first record is out: from there on, the group arrives or the learner is told.

        A group that cannot be sent, or not in full, raises, and a tombstone tells the learner: `RecordTooLarge` if it
        is larger than a lane. `TypeError` for an ``instance_id`` that is neither text nor a whole number: then there is
        no key for a tombstone either.
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
            raise  # there is no learner to be told
        except Exception as error:  # whatever it was, the learner has to know
            await self._send_tombstone(key, version, str(error))
            raise
        return key

    async def tombstone(self, instance_id: str | int, version: int, reason: str) -> GroupKey:
        """Tells the learner that a group of this instance was made, and will not come."""
        key = self._next_key(instance_id)
        await self._send_tombstone(key, version, reason)
        return key

    def close(self) -> None:
        """Leaves. What was sent stays to be read."""
        self._client.close()

    def _check_open(self) -> None:
        if self.closed:
            raise ConnectionClosedError("the learner has closed the records; there is nobody to generate for")

    def _check_room(self, records: Sequence[EncodedRecord]) -> None:
        """Who reads a group holds what has come of it until the rest is there: so all of it has to fit."""
        if self._lane_bytes is None:  # a learner on another host says it when it is reached, if it is below 1 GiB
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
        if len(self._visits) > _REMEMBERED:  # an environment that invents its items never repeats one
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
            return  # nobody is left to be told


class TcpGroupSender(GroupSender):
    """Sends groups through one `TcpRecordClient`. How far the learner is, it says itself, as often as it is asked."""

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more: closed here, or lost for good."""
        return bool(self._client.closed or self._client.over)

    def status(self) -> tuple[int, int]:
        """As of the learner's last answer, with what is on its way there. A call asks for the next answer."""
        self._check_open()
        step, waiting = self._client.learner_news()
        return int(step), int(waiting)


def _bytes_of(record: EncodedRecord) -> int:
    """What it takes at least."""
    return sum(array.nbytes for array in record.data.values()) + len(record_metadata.encode(record.metadata))


async def _uninterrupted(work: Coroutine[Any, Any, Any]) -> None:
    """Waits for something even if this task is cancelled meanwhile; then hands the cancellation on."""
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
