"""A signal that comes just before a call falls asleep wakes nobody, and yet ends the call."""

import pytest

# Timers go off from the first microseconds of a call on: some of them before it sleeps, which is what this is about.
AIMED = """
import random, signal, sys
import numpy as np
import rollway

class Rung(Exception):
    pass

def handler(*_):
    raise Rung

def aimed(call, rounds=60):
    signal.signal(signal.SIGALRM, handler)
    ended = 0
    for _ in range(rounds):
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(5e-6, 1e-4))
            call()
        except Rung:
            ended += 1
    print(ended, flush=True)

SAMPLE, name = {"x": np.zeros(2)}, sys.argv[1]
"""

WAITS = {
    "a learner for a batch": """
with rollway.Server(SAMPLE, 1, rollway.ShmTransport(name)) as server:
    aimed(server.sample)
""",
    "a worker for room": """
with rollway.Server(SAMPLE, 1, rollway.ShmTransport(name), num_buffers=2) as server:
    with rollway.ShmClient(name, SAMPLE) as client:
        while client.try_send(SAMPLE):
            pass
        aimed(lambda: client.send(SAMPLE))
""",
    "a learner for a record": """
with rollway.RecordServer({"x": "float64[*]"}, rollway.ShmTransport(name)) as server:
    aimed(server.read)
""",
    "a worker for its learner": """
aimed(lambda: rollway.ShmClient(name, SAMPLE, connect_timeout_s=600.0))
""",
    "a reader for weights": """
with rollway.SharedWeightSync({"w": (2,)}, shm_name=name) as writer:
    with rollway.SharedWeightSync.attach(name) as reader:
        aimed(lambda: reader.wait_for_version(1))
""",
    "a remote worker for what is on its way": """
with rollway.Server(SAMPLE, 1, rollway.TcpTransport(), num_buffers=2) as server:
    server.start()
    client = rollway.TcpClient("127.0.0.1", server.port, SAMPLE)
    for _ in range(8):
        client.try_send(SAMPLE)
    aimed(client.wait)
    try:
        client.close(timeout=0.0)
    except rollway.ConnectionClosedError:
        pass  # They never found room.
""",
}


@pytest.mark.parametrize("code", WAITS.values(), ids=WAITS.keys())
def test_no_signal_is_lost_on_the_way_to_sleep_of(code, name, child):
    waiting = child(AIMED + code, name)
    waiting.says("60")
    waiting.ends()
