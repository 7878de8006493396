"""ShmTransport: the settings of shared memory that a server offers to workers on the same machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollway.segment.naming import auto_name
from rollway.transport.learner_end import check_keep
from rollway.transport.policies import IfExists, Keep


class _AutoName(str):
    """An automatic name. A name that a user chose may look the same."""


def _auto_name() -> str:
    return _AutoName(auto_name())


@dataclass(frozen=True, kw_only=True)
class _Options:
    if_exists: IfExists | None = None
    keep: Keep = "on_error"
    huge_pages: bool | None = None
    max_peers: int = 1024


@dataclass(frozen=True)
class ShmTransport(_Options):
    """Shared memory under a name, for workers on this machine.

    Args:
        name: What workers attach to. Left out, it is automatic, and the segment is removed as soon as no process is
            attached, because no process could find it again.
        if_exists: ``"resume"`` continues with the content of a segment of that name; one of another shape is an error,
            unless it is empty and no process is attached; ``"replace"`` starts anew unless a process is attached to it;
            ``"error"`` refuses. Left out, it is ``"resume"`` with a warning if there is data of an earlier run.
        keep: When the segment stays for the next learner, with what was committed. ``"on_error"``: unless ``close()``
            was called, or the ``with`` block ended without an exception. ``"always"``: also then. ``"never"``: only
            when the process is killed. A segment that stays is as after SIGKILL: workers wait for the next learner,
            and ``rollway gc`` removes it. One with an automatic name, or with nothing in it, never stays.
        huge_pages: 2 MB pages: ``True`` requires them, ``False`` does without, ``None`` takes them for a large segment
            if the kernel has them.
        max_peers: How many processes may be attached at once; at most 1024.

    >>> ShmTransport("run1").name
    'run1'
    """

    name: str = field(default_factory=_auto_name)

    def __post_init__(self) -> None:
        check_keep(self.keep)

    @property
    def auto_named(self) -> bool:
        """Whether the name is automatic."""
        return isinstance(self.name, _AutoName)
