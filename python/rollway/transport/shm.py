"""ShmTransport: the settings of shared memory that a server offers to workers on the same machine."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollway.segment.naming import auto_name
from rollway.transport.policies import IfExists


class _AutoName(str):
    """An automatic name. A name that a user chose may look the same."""


def _auto_name() -> str:
    return _AutoName(auto_name())


@dataclass(frozen=True, kw_only=True)
class _Options:
    if_exists: IfExists = "resume"
    huge_pages: bool | None = None
    max_peers: int = 1024


@dataclass(frozen=True)
class ShmTransport(_Options):
    """Shared memory under a name, for workers on this machine.

    Args:
        name: What workers attach to. Left out, it gets an automatic name (see `name`), and the segment is removed as
            soon as no process is attached, because no process could find it again.
        if_exists: ``"resume"`` goes on with what was committed to a ring of that name, and replaces a stale one of
            another shape; ``"replace"`` starts anew unless a process is attached to it; ``"error"`` refuses.
        huge_pages: 2 MB pages: ``True`` requires them, ``False`` does without, ``None`` takes them if the kernel gives
            them to a ring that is large enough.
        max_peers: How many processes may be attached at once; at most 1024.

    >>> ShmTransport("run1").name
    'run1'
    """

    name: str = field(default_factory=_auto_name)

    @property
    def auto_named(self) -> bool:
        """Whether the name is automatic."""
        return isinstance(self.name, _AutoName)
