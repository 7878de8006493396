"""Policies: the choices that users make for a segment or a connection, the same for rings and records."""

from typing import Literal

OnFull = Literal["block", "drop_oldest", "drop_newest", "error"]
"""What a producer does when there is no room: wait, drop the oldest batch or record, drop its own, or raise."""

IfExists = Literal["resume", "replace", "error"]
"""What to do with a segment of the same name: continue with its content, start anew, or raise.

Where it is left out, a learner continues, and warns if it finds the data of an earlier run.
"""

REPLACE = 'throw its content away with if_exists="replace" or `rollway gc`, once no process is attached'
"""What a learner can do about a segment of another shape, for the message of an error."""

Keep = Literal["on_error", "always", "never"]
"""When a learner that ends leaves its segment, with what was committed, to the next one."""

OnRestart = Literal["raise", "drop", "resend"]
"""What a remote client does with what a restarted learner never acknowledged: raise, give it up, or send it again."""

_RECORD_BYTES = 16_384  # the assumed average size of a record, when max_records is left out


def default_max_records(lane_bytes: int) -> int:
    """How many records a lane can hold, when that is left out."""
    return max(lane_bytes // _RECORD_BYTES, 64)
