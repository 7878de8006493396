"""`History` keeps an hour of looks in bounded memory, and segments that have ended."""

import numpy as np
import pytest

import rollway
from rollway.dashboard.history import HOUR_S, SERIES, History, Series, fill, lag
from rollway.inspect import Inspection, Unreadable
from rollway.weights import WeightSync
from tests.support.segments import overwrite

EXAMPLE = {"obs": np.zeros(4, np.float32)}


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def of(values, name):
    return values[:, SERIES.index(name)]


def test_rates_fill_and_waiting_of_a_ring_are_kept(name):
    clock = Clock()
    history = History([name], clock=clock)
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name), num_buffers=2) as server:
        history.add(history.look())
        for _ in range(3):
            server.submit(EXAMPLE)
        clock.now += 1
        history.add(history.look())
        watched = history.get(name)
        times, values = watched.series.last(60, clock.now, points=100)
        assert times.tolist() == [1001.0]
        assert of(values, "committed")[0] > 0 and of(values, "taken")[0] == 0
        assert of(values, "fill").tolist() == [0.75]
        assert of(values, "takers_wait").tolist() == [0] and np.isnan(of(values, "lag")).all()
        assert watched.verdict.culprit == "nobody"


def test_a_segment_that_vanishes_is_ended_and_returns_under_its_name(name):
    clock = Clock()
    history = History([name], clock=clock)
    history.add(history.look())
    assert history.get(name).state == "awaited"
    for _ in range(2):
        with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)):
            history.add(history.look())
            assert history.get(name).state == "live"
            assert history.get(name).interval.seconds == 0  # not from the segment that had the name before
        history.add(history.look())
        assert history.get(name).state == "ended" and history.get(name).interval.after.kind == "ring"


def test_a_segment_that_ended_is_forgotten_after_an_hour(name, monkeypatch, tmp_path):
    monkeypatch.setenv("ROLLWAY_SHM_DIR", str(tmp_path))
    clock = Clock()
    history = History(clock=clock)
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport("short")):
        history.add(history.look())
    history.add(history.look())
    clock.now += HOUR_S
    history.add(history.look())
    assert [one.name for one in history.segments] == ["short"]
    clock.now += 1
    history.add(history.look())
    assert history.segments == []


def test_the_number_of_ended_segments_is_bounded():
    clock = Clock()
    history = History(clock=clock)
    for number in range(300):
        clock.now += 1
        history.add([Unreadable(f"run{number}", "odd")])
    assert len(history.segments) == 101
    assert history.get("run299") is not None and history.get("run100") is None


def test_a_damaged_segment_says_so_and_leaves_a_gap(name):
    history = History([name])
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)):
        history.add(history.look())
        overwrite(name, b"ROLLWAY", b"rollway")
        broken = History([name])
        broken.add(broken.look())
        assert broken.get(name).state == "unreadable" and "not a Rollway segment" in broken.get(name).problem
        overwrite(name, b"rollway", b"ROLLWAY")


def test_the_history_holds_one_hour_and_no_more():
    series = Series(10)
    for at in range(25):
        series.add(at, [at] * len(SERIES))
    times, values = series.last(100, 25, points=100)
    assert times.tolist() == list(range(15, 25)) == of(values, "lag").tolist()
    assert series.last(3, 25, points=100)[0].tolist() == [22, 23, 24]


def test_a_clock_that_is_set_back_does_no_harm():
    series = Series(100)
    for at in (1000, 1001, 1002, 400, 401, 402):
        series.add(at, [1.0] * len(SERIES))
    times, values = series.last(3600, 402, points=2)
    assert len(times) <= 3 and (of(values, "fill") == 1).all()


def test_averages_leave_out_what_is_not_known():
    series = Series(100)
    for at in range(8):
        series.add(at, [np.nan if at in (0, 2, 3) else at] * len(SERIES))
    times, values = series.last(8, 8, points=4)
    assert times.tolist() == [1, 3, 5, 7]
    assert of(values, "fill")[[0, 2, 3]].tolist() == [1, 4.5, 6.5] and np.isnan(of(values, "fill")[1])


def test_the_slowest_reader_of_weights_is_the_lag(name):
    with WeightSync({"w": (2,)}, name=name) as writer:
        with WeightSync.attach(name) as reader:
            for _ in range(3):
                writer.write_weights({"w": np.ones(2, np.float32)})
            look = Inspection(name).look()
            assert lag(look) == 3 and np.isnan(fill(look))
            reader.read_weights()
            assert lag(Inspection(name).look()) == 0


@pytest.mark.parametrize("kind", ["replay", "records"])
def test_fill_is_the_share_of_the_room_that_is_used(kind, name):
    if kind == "records":
        with rollway.RecordServer({"x": "int32[*]"}, rollway.ShmTransport(name)) as server:
            server.submit({"x": np.zeros(300, np.int32)})
            assert 0 < fill(Inspection(name).look()) < 1
    else:
        with rollway.replay.TransitionBuffer(10, 2, 1, name=name) as buffer:
            assert fill(Inspection(buffer.name).look()) == 0
