"""A learner is killed with a batch in its hands; the next one goes on with everything that was committed."""

import multiprocessing
import os
import secrets
import signal
from multiprocessing.synchronize import Event

import numpy as np

import rollway

EXAMPLE = {"step": np.zeros((), np.int64)}
NAME = f"resume-{secrets.token_hex(4)}"


def doomed_learner(name: str, ready: Event) -> None:
    server = rollway.Server(EXAMPLE, batch_size=4, transport=rollway.ShmTransport(name))
    ready.set()
    sample = server.sample()
    print("first learner holds steps", sample.batch["step"].tolist(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    first = context.Process(target=doomed_learner, args=(NAME, ready))
    first.start()
    ready.wait()
    with rollway.ShmClient(NAME, EXAMPLE) as client:
        for step in range(8):
            client.send({"step": np.array(step)})
        first.join()
        transport = rollway.ShmTransport(NAME, if_exists="resume")
        with rollway.Server(EXAMPLE, batch_size=4, transport=transport) as second:
            for _ in range(2):
                print("second learner got steps", second.sample(timeout=10).batch["step"].tolist())


if __name__ == "__main__":
    main()
