"""RecordKey: which trajectory of which group a record is."""

from __future__ import annotations

import struct
from typing import NamedTuple

from rollway.errors import InvalidArgument

WHOLE_GROUP = -1
"""The repetition of a tombstone for its whole group."""

_HEAD = struct.Struct("<qqHH")  # step, repetition_id, bytes of run, bytes of phase; then the three texts


class GroupKey(NamedTuple):
    """What the records of one group have in common."""

    run: str
    phase: str
    step: int
    instance_id: str

    @property
    def whole(self) -> RecordKey:
        """The key of a tombstone for the whole group."""
        return RecordKey(*self, WHOLE_GROUP)


class RecordKey(NamedTuple):
    """The name of one trajectory.

    An instance comes again in every epoch, and both in training and in evaluation. Run, phase, step, instance and
    repetition together name one trajectory.

    Args:
        run: The training run, or one worker's part of it.
        phase: ``"train"``, ``"eval"``, …
        step: The epoch or the step.
        instance_id: The prompt, task or environment instance.
        repetition_id: Which of the group's trajectories this is, from 0. `WHOLE_GROUP` for a tombstone of all of them.

    >>> key = RecordKey("run1", "train", 3, "task-17", 2)
    >>> RecordKey.unpack(key.pack()) == key
    True
    """

    run: str
    phase: str
    step: int
    instance_id: str
    repetition_id: int

    @property
    def group(self) -> GroupKey:
        """The key without the repetition."""
        return tuple.__new__(GroupKey, self[:4])  # twice as fast as a call of the class; used for every record

    def pack(self) -> bytes:
        """The key as bytes."""
        try:
            run, phase, instance = self.run.encode(), self.phase.encode(), self.instance_id.encode()
            return _HEAD.pack(self.step, self.repetition_id, len(run), len(phase)) + run + phase + instance
        except (AttributeError, struct.error, UnicodeEncodeError) as error:
            raise InvalidArgument(
                f"{self!r} is not a key: run, phase and instance_id must be text (the first two up to 65,535 bytes), "
                f"step and repetition_id whole numbers ({error})"
            ) from None

    @classmethod
    def unpack(cls, packed: bytes) -> RecordKey:
        """The inverse of `pack`."""
        try:
            step, repetition, run_bytes, phase_bytes = _HEAD.unpack_from(packed)
            phase_at = _HEAD.size + run_bytes
            instance_at = phase_at + phase_bytes
            if instance_at > len(packed):
                raise ValueError("it is too short")
            run, phase, instance = packed[_HEAD.size : phase_at], packed[phase_at:instance_at], packed[instance_at:]
            return cls(run.decode(), phase.decode(), step, instance.decode(), repetition)
        except (struct.error, ValueError) as error:
            raise InvalidArgument(f"these bytes are not a key: {error}") from None
