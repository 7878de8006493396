"""`rollway metrics`: of real processes that run, are stopped and are killed, without code in them."""

import os
import signal
from urllib.request import Request, urlopen

import numpy as np
import pytest

import rollway
from rollway.metrics import SegmentCollector
from tests.support.processes import Command, until

EXAMPLE = {"obs": np.zeros(4, np.float32)}

PRODUCER = """
    import sys, numpy as np, rollway
    client = rollway.ShmClient(sys.argv[1], {"obs": np.zeros(4, np.float32)})
    client.send({"obs": np.zeros(4, np.float32)})
    print("sent", flush=True)
    sys.stdin.read()
"""


def samples(name):
    """Value by metric, role and pid or state."""
    return {
        (sample.name.removeprefix("rollway_"), sample.labels.get("role"), *chosen(sample.labels)): sample.value
        for family in SegmentCollector(name).collect()
        for sample in family.samples
    }


def chosen(labels):
    return [labels[key] for key in ("pid", "state", "activity") if key in labels]


def test_a_stopped_and_a_killed_producer_are_named(name, child):
    with rollway.Server(EXAMPLE, 4, rollway.ShmTransport(name)) as server:
        workers = [child(PRODUCER, name) for _ in range(3)]
        for worker in workers:
            worker.says("sent")
        running, stopped, killed = (str(worker.pid) for worker in workers)
        workers[1].stop()
        workers[2].kill()
        seen = samples(name)
        for state, count in (("alive", 1), ("stopped", 1), ("dead", 1)):
            assert seen["participants", "producer", state] == count
        alive = [seen["participant_alive", "producer", pid] for pid in (running, stopped, killed)]
        assert alive == [1, 1, 0]
        is_stopped = [seen["participant_stopped", "producer", pid] for pid in (running, stopped, killed)]
        assert is_stopped == [0, 1, 0]
        assert seen["participant_committed_total", "producer", killed] == 1
        assert ("participant_seconds_total", "producer", stopped, "work") in seen
        assert ("participant_seconds_total", "producer", killed, "work") not in seen
        assert seen["samples_committed_total", None] == 3
        workers[1].resume()
        assert server.stats()["ready_samples"] == 3
        for worker in workers[:2]:
            worker.ends()


def test_the_metrics_of_a_learner_that_is_stopped_are_served(name, child):
    learner = child(
        """
        import sys, numpy as np, rollway
        with rollway.Server({"obs": np.zeros(4, np.float32)}, 4, rollway.ShmTransport(sys.argv[1])) as server:
            print("up", flush=True)
            sys.stdin.read()
        """,
        name,
    )
    learner.says("up")
    learner.stop()
    command = Command("metrics", name, "--port", 0)
    url = command.line("metrics of").split()[-1]
    text = urlopen(url, timeout=30).read().decode()
    assert f'rollway_participant_stopped{{kind="ring",pid="{learner.pid}",role="learner",seat="0"' in text
    assert f'rollway_participants{{kind="ring",role="learner",segment="{name}",state="stopped"}} 1.0' in text
    learner.resume()
    learner.ends()
    until(lambda: f'rollway_segment_readable{{kind="unknown",segment="{name}"}} 0.0' in urlopen(url).read().decode())
    os.kill(command.process.pid, signal.SIGINT)
    assert command.ends() == (130, "", "")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_without_a_word(number, status):
    command = Command("metrics", "--port", 0, ROLLWAY_METRICS_TOKEN="0123456789abcdef")
    url = command.line("metrics of all segments: http://127.0.0.1:").split()[-1]
    asked = Request(url, headers={"Authorization": "Bearer 0123456789abcdef"})
    assert urlopen(asked, timeout=30).status == 200
    os.kill(command.process.pid, number)
    assert command.ends() == (status, "", "")


def test_it_prints_once_and_ends(name):
    with rollway.Server(EXAMPLE, 4, rollway.ShmTransport(name)):
        code, out, err = Command("metrics", name, "--once").ends()
    assert (code, err) == (0, "")
    assert f'rollway_batch_size{{kind="ring",segment="{name}"}} 4.0\n' in out and out.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--host", "0.0.0.0"], "refusing to listen on 0.0.0.0:9464 without a token"),
        (["--host", "0.0.0.0", "--token", "short"], "token length = 5 is out of range"),
        (["--tls-cert", "cert.pem"], "--tls-cert and --tls-key belong together"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(options, sentence):
    code, out, err = Command("metrics", *options, COLUMNS="300").ends()
    assert (code, out) == (1, "") and err.startswith(f"error: {sentence}") and err.count("\n") == 1


def test_segments_that_come_and_go_disturb_no_look(name, child):
    maker = child(
        """
        import sys, time, numpy as np, rollway
        print("up", flush=True)
        for number in range(300):
            with rollway.Server({"x": np.zeros(1)}, 2, rollway.ShmTransport(f"{sys.argv[1]}-{number % 3}")) as server:
                server.submit({"x": np.zeros(1)})
                time.sleep(number % 4 / 500)  # some live too short to be seen
        """,
        name,
    )
    maker.says("up")
    collector, looks, seen = SegmentCollector(), 0, set()
    while maker.process.poll() is None:
        found = [sample for family in collector.collect() for sample in family.samples]
        keys = [(sample.name, *sorted(sample.labels.items())) for sample in found]
        assert len(keys) == len(set(keys))
        seen |= {sample.labels["segment"] for sample in found if sample.name == "rollway_segment_readable"}
        looks += 1
    maker.ends()
    assert looks > 1 and {one for one in seen if one.startswith(name)}
    list(collector.collect())
    assert not [key for key in collector._last if any(part.startswith(name) for part in key)]
