"""However a learner ends, what was committed stays for the next one; only `close()` on the good way removes it."""

import signal
from pathlib import Path

import numpy as np
import pytest

import rollway
from rollway import _core
from tests.support.processes import until

SAMPLE = {"x": np.zeros(1)}
RECORDS = {"x": "float64[*]"}

LEARNERS = {
    "samples": """
def learner(**options):
    return rollway.Server({"x": np.zeros(1)}, 10, rollway.ShmTransport(name, **options), num_buffers=6)

def commit(server):
    for value in range(50):
        server.submit({"x": [value]})
    return server.sample()  # it holds one of the batches when it ends
""",
    "records": """
def learner(**options):
    return rollway.RecordServer({"x": "float64[*]"}, rollway.ShmTransport(name, **options))

def commit(server):
    for value in range(50):
        server.submit({"x": [value] * 3})
    return server.read_many(10)
""",
    "rows": """
def learner(**options):
    return rollway.replay.TransitionBuffer(100, obs_dim=2, action_dim=1, name=name, **options)

def commit(buffer):
    ones = np.ones((50, 2), np.float32)
    buffer.add(ones, ones[:, :1], ones[:, 0], ones, ones[:, 0], ones[:, 0])
    return buffer.sample(10)
""",
}

FAILURES = {
    "an exception": ("with learner() as it:\n    held = commit(it)\n    raise RuntimeError('the trainer fails')", 1),
    "Ctrl-C": ("with learner() as it:\n    held = commit(it)\n    raise KeyboardInterrupt", -signal.SIGINT),
    "sys.exit": ("with learner() as it:\n    held = commit(it)\n    sys.exit(3)", 3),
    "no close": ("it = learner()\nheld = commit(it)", 0),
    "SIGTERM": (
        "with learner() as it:\n    held = commit(it)\n    os.kill(os.getpid(), signal.SIGTERM)\n    signal.pause()",
        -signal.SIGTERM,
    ),
    "SIGKILL": (
        "with learner() as it:\n    held = commit(it)\n    os.kill(os.getpid(), signal.SIGKILL)",
        -signal.SIGKILL,
    ),
}


def program(what, end):
    imports = "import os, signal, sys\nimport numpy as np\nimport rollway\nname = sys.argv[1]\n"
    return imports + LEARNERS[what] + end


def exists(name):
    return (Path(_core.shm_directory()) / f"rollway.{name}").exists()


def resumed(what, name):
    """How much the next learner finds, and whether it is what was committed. It closes, so nothing is left."""
    if what == "rows":
        with rollway.replay.TransitionBuffer(100, obs_dim=2, action_dim=1, name=name, if_exists="resume") as buffer:
            return len(buffer)
    transport = rollway.ShmTransport(name, if_exists="resume")
    if what == "samples":
        with rollway.Server(SAMPLE, 10, transport, num_buffers=6) as server:
            values = [server.sample(timeout=10).batch["x"].ravel().tolist() for _ in range(5)]
            assert np.concatenate(values).tolist() == list(range(50))
    else:
        with rollway.RecordServer(RECORDS, transport) as server:
            values = [server.read(timeout=10)["x"].tolist() for _ in range(50)]
            assert sorted(values) == [[value] * 3 for value in range(50)]
    return 50


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("what", LEARNERS)
def test_whatever_ends_a_learner_leaves_the_same_to_the_next_one(what, failure, name, child):
    code, status = FAILURES[failure]
    child(program(what, code), name).ends(status)
    assert [segment.state for segment in rollway.segments() if segment.name == name] == ["stale"]
    assert resumed(what, name) == 50
    assert not exists(name), "the next learner closed it on the good way"


@pytest.mark.parametrize("what", LEARNERS)
def test_gc_removes_what_a_learner_left_after_an_exception(what, name, child):
    child(program(what, FAILURES["an exception"][0]), name).ends(1)
    assert name in [segment.name for segment in rollway.gc()]
    assert not exists(name)


@pytest.mark.parametrize(
    "end", ["with learner() as it:\n    held = commit(it)", "it = learner()\nheld = commit(it)\nit.close()"]
)
@pytest.mark.parametrize("what", LEARNERS)
def test_a_learner_that_ends_well_leaves_nothing(what, end, name, child):
    child(program(what, end), name).ends()
    assert not exists(name)


@pytest.mark.parametrize("what", LEARNERS)
def test_keep_decides_what_stays(what, name, child):
    fails = "with learner(keep='never') as it:\n    held = commit(it)\n    raise RuntimeError"
    child(program(what, fails), name).ends(1)
    assert not exists(name)
    ends_well = "with learner(keep='always') as it:\n    held = commit(it)"
    child(program(what, ends_well), name).ends()
    assert resumed(what, name) == 50


def test_keep_refuses_other_words(name):
    with pytest.raises(rollway.InvalidArgument, match="keep is 'yes'; it must be 'on_error', 'always' or 'never'"):
        rollway.ShmTransport(name, keep="yes")
    with pytest.raises(rollway.InvalidArgument, match="keep is 'yes'"):
        rollway.ReplayBuffer(10, 1, 1, name=name, keep="yes")


@pytest.mark.parametrize("what", LEARNERS)
def test_a_learner_that_fails_with_nothing_committed_leaves_nothing(what, name, child):
    child(program(what, "with learner() as it:\n    raise RuntimeError"), name).ends(1)
    assert not exists(name)


@pytest.mark.parametrize("what", LEARNERS)
def test_a_segment_whose_name_nobody_chose_goes_with_its_learner(what, child):
    code = program(
        what, "with learner() as it:\n    print(it.name, flush=True)\n    held = commit(it)\n    raise RuntimeError"
    )
    code = code.replace("ShmTransport(name, ", "ShmTransport(").replace("name=name, ", "")
    learner = child(code, "")
    name = learner.line()
    learner.ends(1)
    assert name.startswith("auto-") and not exists(name)


def test_what_a_failed_learner_holds_comes_again_in_the_same_process(name):
    transport = rollway.ShmTransport(name, if_exists="resume")
    caught = None
    try:
        with rollway.Server(SAMPLE, 2, transport) as server:
            for value in range(6):
                server.submit({"x": [value]})
            held = server.sample()
            raise RuntimeError("the trainer fails")
    except RuntimeError as error:
        caught = error
    with rollway.Server(SAMPLE, 2, transport) as server:
        assert server.resumed
        assert held.batch["x"].ravel().tolist() == [0.0, 1.0], "a view stays as it was"
        values = [server.sample(timeout=10).batch["x"].ravel().tolist() for _ in range(2)]
        assert values == [[2.0, 3.0], [4.0, 5.0]]
        del held, caught
        assert server.sample(timeout=10).batch["x"].ravel().tolist() == [0.0, 1.0]


def test_a_failed_learner_with_a_transport_leaves_its_segment_to_others(name):
    for committed in (0, 1):
        with pytest.raises(RuntimeError):
            with rollway.Server(SAMPLE, 2, [rollway.ShmTransport(name), rollway.TcpTransport()]) as server:
                for _ in range(committed):
                    server.submit(SAMPLE)
                raise RuntimeError
        left = [segment.state for segment in rollway.segments() if segment.name == name]
        assert left == ["stale"] * committed, "also while the server object is there"
    assert server.closed and server.stats()["producers_alive"] == 0
    with rollway.Server(SAMPLE, 5, rollway.ShmTransport(name, if_exists="replace")) as server:
        assert not server.resumed


def test_a_server_that_cannot_start_keeps_what_it_resumed(name, child):
    child(program("samples", FAILURES["SIGKILL"][0]), name).ends(-signal.SIGKILL)
    with rollway.Server(SAMPLE, 1, rollway.TcpTransport()) as other:
        transports = [rollway.ShmTransport(name, if_exists="resume"), rollway.TcpTransport(other.port)]
        with pytest.raises(rollway.errors.AddressUnavailable), rollway.Server(SAMPLE, 10, transports, num_buffers=6):
            pass
    assert resumed("samples", name) == 50


BLOCKED = """
import sys
import numpy as np
import rollway
with rollway.ShmClient(sys.argv[1], {"x": np.zeros(1)}, peer_timeout_s=float(sys.argv[2])) as client:
    print("attached", flush=True)
    try:
        for value in range(10):
            client.send({"x": [value]})
    except rollway.PeerDied as error:
        print(error)
print("sent", flush=True)
"""


def test_a_blocked_worker_learns_that_its_learner_failed(name, child):
    with pytest.raises(RuntimeError, match="the trainer fails"):
        with rollway.Server(SAMPLE, 2, rollway.ShmTransport(name), num_buffers=2) as server:
            worker = child(BLOCKED, name, 0.05)
            worker.says("attached")
            until(lambda: server.stats()["blocked"])
            raise RuntimeError("the trainer fails")
    out, _ = worker.ends()
    assert f"the learner on '{name}' died" in out and "Start a learner with the same name" in out
    rollway.gc()


def test_a_blocked_worker_goes_on_with_the_next_learner(name, child):
    with pytest.raises(RuntimeError, match="the trainer fails"):
        with rollway.Server(SAMPLE, 2, rollway.ShmTransport(name), num_buffers=2) as server:
            worker = child(BLOCKED, name, 60)
            worker.says("attached")
            until(lambda: server.stats()["blocked"])
            raise RuntimeError("the trainer fails")
    with rollway.Server(SAMPLE, 2, rollway.ShmTransport(name, if_exists="resume"), num_buffers=2) as server:
        values = [server.sample(timeout=10).batch["x"].ravel().tolist() for _ in range(5)]
        worker.says("sent")
        worker.ends()
    assert np.concatenate(values).tolist() == list(range(10))


def test_a_remote_worker_is_told_that_its_learner_failed():
    with pytest.raises(RuntimeError, match="the trainer fails"):
        with rollway.Server(SAMPLE, 2, rollway.TcpTransport()) as server:
            client = rollway.TcpClient("localhost", server.port, SAMPLE)
            client.send({"x": [1.0]})
            client.wait()
            raise RuntimeError("the trainer fails")
    with pytest.raises(rollway.ConnectionClosedError), client:
        for _ in range(1000):
            client.send({"x": [1.0]})
            client.wait(timeout=30)


def test_a_generator_that_is_not_read_to_its_end_closes_its_server(name):
    def batches():
        with rollway.Server(SAMPLE, 1, rollway.ShmTransport(name), num_buffers=4) as server:
            for value in range(3):
                server.submit({"x": [value]})
            yield from server.dataset_iter(copy=True)

    for batch in batches():
        assert batch.batch["x"].tolist() == [[0.0]]
        break
    assert not exists(name)
