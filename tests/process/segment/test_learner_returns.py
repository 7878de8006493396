"""A learner that was killed comes back under its name, after the last worker has closed: what it left is still there."""

import contextlib
from pathlib import Path

import numpy as np
import pytest

import rollway
from rollway import SharedObsNormStats, SharedWeightSync, _core

WEIGHTS = {"w": np.zeros(4, np.float32)}
SAMPLE = {"x": np.zeros(1)}

LEARNER = """
import sys
import numpy as np
import rollway

name = sys.argv[1] if len(sys.argv) > 1 else None
sync = rollway.SharedWeightSync.from_state_dict({"w": np.zeros(4, np.float32)}, shm_name=name)
for value in range(2, 6):
    sync.write_weights({"w": np.full(4, value, np.float32)})
print(sync.name, flush=True)
sys.stdin.readline()
"""


def exists(name):
    return (Path(_core.shm_directory()) / f"rollway.{name}").exists()


def comes_back(name):
    """A learner that goes on with the weights of that name: the version that it finds, and the one that it writes."""
    with SharedWeightSync({"w": (4,)}, shm_name=name) as learner:
        found, before = learner.version, learner.read_weights()["w"].tolist()
        learner.write_weights(WEIGHTS)
        return found, before, learner.version


def test_weights_of_a_killed_learner_stay_when_the_last_reader_closes(name, child):
    learner = child(LEARNER, name)
    learner.says(name)
    with SharedWeightSync.attach(name) as reader:
        learner.kill()
        assert reader.version == 5
    assert exists(name), "the learner cannot go on with what the last reader took away"
    assert comes_back(name) == (5, [5.0] * 4, 6)
    assert not exists(name), "the learner left in good order, as the last one"


def test_weights_stay_also_when_a_reader_has_taken_the_dead_learners_seat(name, child):
    learner = child(LEARNER, name)
    learner.says(name)
    learner.kill()
    for _ in range(3):
        with SharedWeightSync.attach(name) as reader:  # The first free seat is the learner's.
            assert reader.version == 5
            assert reader.writer_pid in (None, learner.pid)
    assert exists(name)
    assert comes_back(name) == (5, [5.0] * 4, 6)


def test_gc_and_cleanup_take_away_what_a_killed_learner_left(name, child):
    for end in ("gc", "cleanup"):
        learner = child(LEARNER, name)
        learner.says(name)
        reader = SharedWeightSync.attach(name)
        learner.kill()
        if end == "cleanup":
            reader.cleanup()
        else:
            reader.close()
            assert name in [removed.name for removed in rollway.gc()]
        assert not exists(name)
    with SharedWeightSync.from_state_dict(WEIGHTS, shm_name=name) as anew:
        assert anew.version == 1


def test_weights_whose_name_nobody_chose_go_with_the_last_reader(child):
    learner = child(LEARNER)
    name = learner.line()
    with SharedWeightSync.attach(name):
        learner.kill()
    assert not exists(name), "nobody knows the name, so nobody comes back"


def test_weights_that_were_never_written_go_with_the_last_reader(name, child):
    code = """
    import sys, rollway
    sync = rollway.SharedWeightSync({"w": (4,)}, shm_name=sys.argv[1])
    print("made", flush=True)
    sys.stdin.readline()
    """
    learner = child(code, name)
    learner.says("made")
    with SharedWeightSync.attach(name):
        learner.kill()
    assert not exists(name), "there is no version to go on with"


def test_weights_of_a_learner_that_closed_go_with_the_last_reader(name):
    learner = SharedWeightSync.from_state_dict(WEIGHTS, shm_name=name)
    with SharedWeightSync.attach(name):
        learner.close()
        assert exists(name)
    assert not exists(name)


def test_statistics_of_a_killed_process_stay_for_the_one_that_comes_back(name, child):
    code = """
    import sys
    import numpy as np
    import rollway
    stats = rollway.SharedObsNormStats(name=sys.argv[1])
    stats.put((np.full(3, 2.0), np.full(3, 4.0)))
    print("put", flush=True)
    sys.stdin.readline()
    """
    putter = child(code, name)
    putter.says("put")
    with SharedObsNormStats(name=name) as getter:
        putter.kill()
        assert getter.get() is not None
    assert exists(name)
    with SharedObsNormStats(name=name) as again:
        mean, std = again.get()
        assert (mean.tolist(), std.tolist()) == ([2.0] * 3, [4.0] * 3)
        again.put((mean, std))
    assert not exists(name), "the one who puts now has left in good order"


def test_the_copy_of_a_killed_worker_stays_and_is_gone_on_with(name, child):
    code = """
    import sys
    import rollway
    mirror = rollway.TcpWeights("127.0.0.1", int(sys.argv[2]), name=sys.argv[1])
    mirror.wait_for_version(2)
    print("here", flush=True)
    sys.stdin.readline()
    """
    with SharedWeightSync.from_state_dict(WEIGHTS) as learner, learner.serve(rollway.TcpTransport()) as endpoint:
        learner.write_weights(WEIGHTS)
        worker = child(code, name, endpoint.port)
        worker.says("here")
        with SharedWeightSync.attach(name) as reader:
            worker.kill()
            assert reader.version == 2
        assert exists(name)
        with rollway.TcpWeights("127.0.0.1", endpoint.port, name=name) as again:
            learner.write_weights(WEIGHTS)
            assert again.wait_for_version(3, timeout=10) == 3
    assert not exists(name)


LEARNERS = {
    "samples": """
server = rollway.Server({"x": np.zeros(1)}, 2, rollway.ShmTransport(name))
""",
    "records": """
server = rollway.RecordServer({"x": "float64[*]"}, rollway.ShmTransport(name))
""",
    "rows": """
server = rollway.ReplayBuffer(100, obs_dim=2, action_dim=1, name=name)
""",
}


def send_samples(name):
    with rollway.ShmClient(name, SAMPLE) as worker:
        yield worker
        for value in range(4):
            worker.send({"x": np.full(1, float(value))})


def read_samples(name):
    with rollway.Server(SAMPLE, 2, rollway.ShmTransport(name, if_exists="resume")) as server:
        return [server.sample(timeout=10).batch["x"].ravel().tolist() for _ in range(2)]


def send_records(name):
    with rollway.ShmRecordClient(name, {"x": "float64[*]"}) as worker:
        yield worker
        for value in range(3):
            worker.send({"x": np.full(value + 1, float(value))})


def read_records(name):
    with rollway.RecordServer({"x": "float64[*]"}, rollway.ShmTransport(name, if_exists="resume")) as server:
        return [server.read(timeout=10)["x"].tolist() for _ in range(3)]


def add_rows(name):
    ones = np.ones((5, 2), np.float32)
    with rollway.ReplayBuffer.attach(name) as worker:
        yield worker
        worker.add(ones, ones[:, :1], ones[:, 0], ones, ones[:, 0], ones[:, 0])


def read_rows(name):
    with rollway.ReplayBuffer(100, obs_dim=2, action_dim=1, name=name, if_exists="resume") as buffer:
        return [buffer.resumed, len(buffer), float(buffer.sample(4)["obs"].sum())]


@pytest.mark.parametrize(
    ("what", "send", "read", "expected"),
    [
        ("samples", send_samples, read_samples, [[0.0, 1.0], [2.0, 3.0]]),
        ("records", send_records, read_records, [[0.0], [1.0, 1.0], [2.0, 2.0, 2.0]]),
        ("rows", add_rows, read_rows, [True, 5, 8.0]),
    ],
    ids=LEARNERS.keys(),
)
def test_what_was_committed_stays_when_the_last_worker_closes(what, send, read, expected, name, child):
    code = "import sys\nimport numpy as np\nimport rollway\nname = sys.argv[1]\n" + LEARNERS[what]
    learner = child(code + 'print("ready", flush=True)\nsys.stdin.readline()\n', name)
    learner.says("ready")
    with contextlib.closing(send(name)) as sending:
        next(sending)
        learner.kill()
        assert next(sending, None) is None  # It sends, and closes.
    assert exists(name)
    assert read(name) == expected
    assert not exists(name)
