"""Dying with the parent: the kernel kills a collector, and its process group, when its learner is gone.

The learner keeps the write end of a pipe that nobody ever writes to. The read end is armed (``O_ASYNC``, ``F_SETSIG``)
so that the kernel itself sends SIGKILL when the last write end closes, however the learner ended. No thread has to wake
up for it and no GIL is needed: a collector that hangs in native code dies as well.

```text
armed by       on                             kills             from
the learner    the read end                   the collector     the moment it is started, while it still imports
the collector  its own opening of the pipe    its whole group   its first line on: also processes that it starts
```

Both fire at once. ``PR_SET_PDEATHSIG`` is left out: it fires when the *thread* that started the child ends, be it the
learner's main one whose other threads still hold the pipe; the collector then dies before its group is named, and what
it has started survives. What escapes: a process that leaves the group (``setsid``, ``start_new_session=True``), and
what a collector has left behind that died just before its learner. A fork of the learner in native code (those by
Python close the pipe) keeps collectors alive until it ends. Private to the supervisor of the collectors.

Three kinds of children die with their parent, each by a mechanism of its own, because none serves all three:

```text
child                                 mechanism             why not the others
collector (spawned, here)             this pipe             must die while it still imports, while it is stopped, and
                                                            with its group: a thread of its own can do none of these
worker of a vector env (also forked,  a native thread that  a fork server, or a forked sibling, may hold the pipe; the
by any start method; `end_with`)      waits on a pidfd      subprocesses of an environment keep the terminal's group
command of the SkyRL launcher (any    ``PR_SET_PDEATHSIG``  runs no code of ours, and may close every descriptor that
program; `skyrl.launch`)                                    it inherits; the launcher starts it from its main thread
```
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import weakref
from multiprocessing.connection import Connection


class ParentPipe:
    """The learner's end of one collector's pipe. It lives as long as the learner.

    Args:
        read_end: For the collector, who inherits it.
        write_end: Kept here.
    """

    def __init__(self, read_end: Connection, write_end: Connection) -> None:
        self.read_end = read_end
        self._write_end = write_end
        _parent_pipes.add(self)

    def arm(self, pid: int) -> None:
        """From now on ``pid``, which has inherited `read_end`, dies with this process."""
        _kill_on_hangup(self.read_end.fileno(), pid)
        self.read_end.close()

    def close(self) -> None:
        """Closes both ends. In the learner this kills the collector. Safe to call twice."""
        self.read_end.close()
        self._write_end.close()


_parent_pipes: weakref.WeakSet[ParentPipe] = weakref.WeakSet()


def _close_in_forked_child() -> None:
    for pipe in list(_parent_pipes):
        pipe.close()


os.register_at_fork(after_in_child=_close_in_forked_child)


def die_with_parent(read_fd: int) -> None:
    """In the collector: becomes the head of a process group that dies with the learner. Ends at once if it is dead."""
    os.setpgid(0, 0)
    own = os.open(f"/proc/self/fd/{read_fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # kept open on purpose
    _kill_on_hangup(own, -os.getpid())
    # The learner may have died before we were armed: then the pipe has hung up already.
    watch = select.poll()
    watch.register(own, select.POLLHUP)
    if watch.poll(0):
        os.kill(os.getpid(), signal.SIGKILL)


def _kill_on_hangup(fd: int, owner: int) -> None:
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETOWN, owner)  # negative: the whole group
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
