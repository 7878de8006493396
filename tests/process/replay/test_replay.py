"""ReplayBuffer between processes: spawned and forked adders, samplers beside them."""

import multiprocessing

import numpy as np
import pytest

import rollway
from rollway import ReplayBuffer

ROUNDS, ROWS = 50, 20


def add(buffer, worker):
    for number in range(ROUNDS):
        value = np.full(ROWS, worker * 1000 + number, np.float32)
        wide = np.repeat(value[:, None], 30, 1)
        buffer.add(wide, wide[:, :4], value, wide, value, value)


def check(batch):
    rewards = batch["rewards"]
    for name in ("obs", "actions", "next_obs"):
        assert (batch[name] == rewards[:, None]).all(), f"a torn row: {name}"
    return set(rewards.tolist())


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_many_processes_add_and_nothing_is_lost_or_torn(method):
    context = multiprocessing.get_context(method)
    with ReplayBuffer(4 * ROUNDS * ROWS, 30, 4, "cpu") as buffer:
        workers = [context.Process(target=add, args=(buffer, worker)) for worker in range(4)]
        for worker in workers:
            worker.start()
        assert buffer.wait_for(1, timeout=60)
        while any(worker.is_alive() for worker in workers):
            check(buffer.sample(256))
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
        assert len(buffer) == 4 * ROUNDS * ROWS and buffer.stats()["added"] == 4 * ROUNDS * ROWS
        everything = check(buffer.sample(30_000))
        assert everything == {float(w * 1000 + n) for w in range(4) for n in range(ROUNDS)}


def test_a_learner_that_was_killed_finds_its_transitions_again(child, name):
    learner = child(
        """
        import sys, numpy as np, rollway
        buffer = rollway.ReplayBuffer(100, 1, 1, "cpu", name=sys.argv[1])
        x = np.arange(7, dtype=np.float32)
        buffer.add(x[:, None], x[:, None], x, x[:, None], x, x)
        print("added", flush=True)
        sys.stdin.read()
        """,
        name,
    )
    learner.says("added")
    learner.kill()
    with ReplayBuffer(100, 1, 1, "cpu", name=name, if_exists="resume") as buffer:
        assert buffer.resumed and set(buffer.sample(200)["rewards"].tolist()) == set(range(7))


def test_a_worker_hears_that_the_learner_left(child, name):
    with ReplayBuffer(100, 1, 1, "cpu", name=name) as buffer:
        worker = child(
            """
            import sys, numpy as np, rollway
            buffer = rollway.ReplayBuffer.attach(sys.argv[1])
            print("here", flush=True)
            try:
                buffer.wait_for(1)
            except rollway.ConnectionClosedError as error:
                print(error, flush=True)
            """,
            name,
        )
        worker.says("here")
        buffer.close()
        worker.says(f"'{name}' is closed: its last learner has left")
        worker.ends()


def test_transitions_are_not_replaced_by_a_buffer_of_another_capacity(name, child):
    code = """
    import sys
    import numpy as np
    import rollway
    buffer = rollway.ReplayBuffer(100, 2, 1, name=sys.argv[1])
    ones = np.ones((5, 2), np.float32)
    buffer.add(ones, ones[:, :1], ones[:, 0], ones, ones[:, 0], ones[:, 0])
    print("ready", flush=True)
    sys.stdin.readline()
    """
    learner = child(code, name)
    learner.says("ready")
    learner.kill()
    with pytest.raises(rollway.errors.GeometryMismatch, match="has capacity = 100, but 200 was asked for"):
        rollway.ReplayBuffer(200, 2, 1, name=name, if_exists="resume")
    with pytest.raises(rollway.SchemaMismatch, match=r'if_exists="replace"'):
        rollway.ReplayBuffer(100, 3, 1, name=name, if_exists="resume")
    with rollway.ReplayBuffer(100, 2, 1, name=name, if_exists="resume") as buffer:
        assert len(buffer) == 5
