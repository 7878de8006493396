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
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollway.async_sends import Vigil
from rollway.errors import ConnectionClosedError, PeerDied, RingFull, WaitTimeout
from rollway.integrations.atropos.encoding import EncodedRecord, encode_group
from rollway.integrations.atropos.identity import as_text
from rollway.record_key import GroupKey, RecordKey

_log = logging.getLogger(__name__)

PHASE = "train"  # evaluation stays inside the environment: Atropos sends none of it
_ALONE_S = 60.0  # how long an environment waits for a learner that died
_STILL_S = 10.0  # over TCP: after how long without a movement a batch counts as used
_REMEMBERED = 1 << 20  # instances of which the visits are counted


class GroupSender:
    """Sends groups through one `ShmRecordClient` of `ATROPOS_SCHEMA`. For one event loop; `close` leaves the learner.

    Args:
        client: Its records go to the learner.
        name: First half of the run in the keys.
    """

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self.run = f"{name}:{secrets.token_hex(4)}"
        self.groups_sent = 0
        self.records_sent = 0
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

    def records_waiting(self) -> int:
        """Records that the learner has not given back, from all environments. `ConnectionClosedError` at the end.

        `PeerDied` when the learner is dead, and nobody has come back to the records for a minute.
        """
        self._check_open()
        self._alone_since = Vigil(self._client.learners, _ALONE_S).look(self._alone_since)
        stats = self._client.stats()
        return int(stats["ready_records"] + stats["taken_records"])

    async def send(self, group: Mapping[str, Any], instance_id: str | int, version: int) -> GroupKey:
        """Sends a group; returns when its last record is out. A task cancelled before the first record sends nothing.

        A group that cannot be sent, or not in full, raises, and a tombstone tells the learner. `TypeError` for an
        ``instance_id`` that is neither text nor a whole number: then there is no key for a tombstone either.
        """
        key = self._next_key(instance_id)
        try:
            records = encode_group(group)
            async with self._turn:
                await self._send_one(key, 0, records[0], version)
                await _to_the_end(asyncio.ensure_future(self._send_rest(key, records, version)))
        except PeerDied:
            raise  # there is no learner to be told
        except Exception as error:  # whatever it was, the learner has to know
            await self._bury(key, version, str(error))
            raise
        self.groups_sent += 1
        return key

    async def bury(self, instance_id: str | int, version: int, reason: str) -> GroupKey:
        """Tells the learner that a group of this instance was made, and will not come."""
        key = self._next_key(instance_id)
        await self._bury(key, version, reason)
        return key

    def close(self) -> None:
        """Leaves. What was sent stays to be read."""
        self._client.close()

    def _check_open(self) -> None:
        if self.closed:
            raise ConnectionClosedError("the learner has closed the records; there is nobody to generate for")

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

    async def _send_one(self, key: GroupKey, repetition: int, record: EncodedRecord, version: int) -> None:
        name = RecordKey(*key, repetition)
        if not await self._client.send_async(record.data, key=name, metadata=record.metadata, version=version):
            raise RingFull(f"the learner's policy dropped {name}: records of groups need on_full='block'")
        self.records_sent += 1

    async def _bury(self, key: GroupKey, version: int, reason: str) -> None:
        try:
            try:
                self._client.tombstone(key.whole, reason, version=version, timeout=0.0)
            except (RingFull, WaitTimeout):
                await asyncio.to_thread(self._client.tombstone, key.whole, reason, version=version)
        except ConnectionClosedError:
            return  # nobody is left to be told


class TcpGroupSender(GroupSender):
    """Sends groups through one `TcpRecordClient`. What waits at the learner cannot be seen from here: it is reckoned.

    The rule. A record waits until the learner has published the step that used its batch, or ``max_batches`` steps more
    than when it was sent. And where nothing moves for ten seconds (no step, nothing sent, all of it arrived), a batch
    counts as used, though no step says so: the learner may have dropped it, or use more than a batch in a step. In the
    same step the next time takes twice as long. So the count never stays too high for ever, and a step of an hour
    gets eight batches too many, not hundreds.

    Args:
        client: Its records go to the learner.
        name: First half of the run in the keys.
        batch_size: How many records the learner uses in a step. ``None`` where somebody else counts what has arrived:
            then only what is on its way is waiting.
        max_batches: After how many steps a record is certainly used, or dropped; ``None``: only its batch counts.
        clock: Tells the time in seconds.
    """

    def __init__(
        self,
        client: Any,
        name: str,
        batch_size: int | None,
        max_batches: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(client, name)
        self._batch_size = batch_size
        self._max_batches = max_batches
        self._clock = clock
        self._waiting: dict[int, int] = {}  # by the step at which they were sent, the oldest first
        self._step = self.published_version
        self._patience_s = _STILL_S
        self._seen = (self._step, 0)  # the step, and how many were sent, …
        self._since = clock()  # … since then

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more: closed here, or lost for good."""
        return bool(self._client.closed or self._client.over)

    def records_waiting(self) -> int:
        """What was sent, less what the learner must have used or dropped since: see the rule."""
        self._check_open()
        if self._batch_size is None:
            return int(self._client.unacknowledged)
        step = self.published_version
        if step != self._step:
            self._use(max(step - self._step, 0) * self._batch_size, step)
            self._step, self._patience_s = step, _STILL_S
        if self._max_batches is not None:
            for old in [sent for sent in self._waiting if sent < step - self._max_batches]:
                del self._waiting[old]
        if self._stands_still():
            self._use(self._batch_size, step + 1)
        return sum(self._waiting.values())

    async def _send_one(self, key: GroupKey, repetition: int, record: EncodedRecord, version: int) -> None:
        await super()._send_one(key, repetition, record, version)
        step = self.published_version
        self._waiting[step] = self._waiting.get(step, 0) + 1

    def _use(self, count: int, before: int) -> None:
        """Takes so many off the count, the oldest first, of those that were sent before this step was published."""
        for step in [step for step in self._waiting if step < before]:
            taken = min(count, self._waiting[step])
            count -= taken
            self._waiting[step] -= taken
            if not self._waiting[step]:
                del self._waiting[step]

    def _stands_still(self) -> bool:
        """Whether nothing has moved for so long that the count is to be doubted."""
        seen, now = (self._step, self.records_sent), self._clock()
        if seen != self._seen or self._client.unacknowledged or not self._waiting:
            self._seen, self._since = seen, now
            return False
        if now - self._since < self._patience_s:
            return False
        _log.info(
            "nothing has moved for %.0f s at step %d, and %d records are reckoned to wait: one more batch is made. Is "
            "--env.batch_size what the learner uses in a step?",
            now - self._since,
            self._step,
            sum(self._waiting.values()),
        )
        self._since, self._patience_s = now, self._patience_s * 2
        return True


async def _to_the_end(task: asyncio.Task[None]) -> None:
    """Waits for a task even if this one is cancelled meanwhile; then hands the cancellation on."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
