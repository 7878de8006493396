"""A program between a worker and its learner that changes what one of them says."""

import contextlib
import socket
import threading

SOON = 20


@contextlib.contextmanager
def lying(port, old, new, to="worker"):
    """The port to connect to in place of the learner's. ``to``: who is lied to, ``"worker"`` or ``"learner"``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        both = []

        def pass_on(one, other, change):
            with contextlib.suppress(OSError):
                while said := one.recv(1 << 20):
                    other.sendall(said.replace(old, new) if change else said)
            for end in (one, other):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    worker = listener.accept()[0]
                    learner = socket.create_connection(("127.0.0.1", port))
                    both.extend((worker, learner))
                    for ends in ((worker, learner, to == "learner"), (learner, worker, to == "worker")):
                        threading.Thread(target=pass_on, args=ends, daemon=True).start()

        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join(SOON)
        for end in both:
            end.close()
