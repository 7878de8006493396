"""What tests do to the files of segments and tokens."""

import contextlib
import fcntl
import mmap
from pathlib import Path

from rollway import _core


@contextlib.contextmanager
def token_passed_on(learner_port, port):
    """Lets workers of this user find the token of the learner also on the port of a proxy in front of it."""
    found = list(Path(_core.shm_directory()).glob(f"rollway-token.*.127.0.0.1.{learner_port}"))
    if not found:  # a learner that was given its token
        yield
        return
    path = found[0].with_name(found[0].name.removesuffix(str(learner_port)) + str(port))
    with path.open("x") as file:
        path.chmod(0o600)
        fcntl.flock(file, fcntl.LOCK_EX)  # what nobody has locked is what a dead learner left behind
        file.write(found[0].read_text())
        file.flush()
        try:
            yield
        finally:
            path.unlink()


def overwrite(name, old, new):
    """Writes over the first ``old`` in a segment, as a process might that knows nothing of this library."""
    assert len(old) == len(new)
    path = Path(_core.shm_directory()) / f"rollway.{name}"
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        at = memory.find(old)
        assert at >= 0
        memory[at : at + len(old)] = new
