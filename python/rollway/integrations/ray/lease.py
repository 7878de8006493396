"""Lease: how the registry knows that a learner lives: a connection that the kernel closes when its process ends.

A node that gives its copy of the weights to others holds one, too.

```text
learner ── key ──▶ registry        the key that `Registry.register` returned: the learner is present from now on
learner ◀── "+" ── registry
learner ── "W" ──▶ registry        the learner withdraws; without it, the end of the connection is a death
learner ◀── end ── registry        whatever waits for this rank knows it
```

A stopped process keeps its connection. A machine that is switched off is noticed after `_SILENCE_S`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from typing import Any

KEY_BYTES = 32
PRESENT, WITHDRAWN = b"+", b"W"
_SILENCE_S = 5  # then the kernel asks, thrice
_leases: weakref.WeakSet[Lease] = weakref.WeakSet()


class Lease:
    """The end of the learner, or of the node."""

    def __init__(self, host: str, port: int, key: bytes, timeout: float) -> None:
        self._socket = socket.create_connection((host, port), timeout)
        try:
            ask_when_silent(self._socket)
            self._socket.sendall(key)
            if self._socket.recv(1) != PRESENT:
                raise ConnectionError(f"{host}:{port} does not know this lease")
            self._socket.settimeout(None)
        except BaseException:
            self._socket.close()
            raise
        _leases.add(self)

    def wait(self) -> None:
        """Returns when the registry has ended, or this lease is given up."""
        with contextlib.suppress(OSError):
            while self._socket.recv(1):
                pass

    @property
    def lost(self) -> bool:
        """Whether the registry has ended."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def withdraw(self, timeout: float) -> None:
        """Tells the registry that this learner ends in order, and waits until it has told all others."""
        with contextlib.suppress(OSError):  # the registry is gone: there is nothing to withdraw from
            self._socket.settimeout(timeout)
            self._socket.sendall(WITHDRAWN)
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(1):
                pass
        self.give_up()

    def give_up(self) -> None:
        """Ends the connection, as the death of this process would."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def ask_when_silent(connection: Any) -> None:
    """Lets the kernel end a connection whose other machine does not answer."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        connection.setsockopt(socket.IPPROTO_TCP, option, _SILENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _close_in_child() -> None:
    """A forked child would keep its parent's lease alive."""
    for lease in _leases:
        lease._socket.close()


os.register_at_fork(after_in_child=_close_in_child)
