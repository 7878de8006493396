"""The metrics of segments, seen from outside: every kind, every participant, and what cannot be looked at."""

import sys
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import rollway
from rollway import _core
from rollway.inspect import Inspection
from rollway.metrics import SegmentCollector, segments_openmetrics
from rollway.metrics.numbers import GROUPS, HISTOGRAMS, OUTSIDE, of_segments
from rollway.weights import WeightSync

EXAMPLE = {"x": np.zeros(4, np.float32)}
SCHEMA = {"x": "int32[*]"}
ACTIVITIES = ["wait_data", "wait_room", "hold", "work"]


class Seen:
    """What a text of metrics says."""

    def __init__(self, text):
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def of(self, name, **labels):
        """The values of a metric whose labels have these values."""
        found = [sample for sample in self.samples if sample.name == f"rollway_{name}"]
        return [sample.value for sample in found if labels.items() <= sample.labels.items()]

    def one(self, name, **labels):
        (value,) = self.of(name, **labels)
        return value


def seen(*names):
    return Seen(segments_openmetrics(*names))


def test_a_ring_has_the_numbers_of_its_server_under_the_same_names(name):
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)) as server, rollway.ShmClient(name, EXAMPLE) as client:
        for _ in range(5):
            client.send(EXAMPLE, version=3)
        with server.sample():
            found, stats = seen(name), server.stats()
    ring = {"segment": name, "kind": "ring"}
    shared = [key for key in stats if found.of(key, **ring) or found.of(f"{key}_total", **ring)]
    assert {"ready_samples", "held_batches", "blocked", "dropped_newest", "producers_waiting"} <= {*shared}
    for key in shared:
        suffix = "_total" if of_segments()[key].only_grows else ""
        assert found.one(key + suffix, **ring) == stats[key], key
    assert found.one("samples_committed_total", **ring) == 5
    assert found.one("fill_ratio", **ring) == 5 / 6
    assert found.one("queue_dwell_seconds_count", **ring) == 1
    assert (found.one("participant_holding"), found.one("participant_version", role="producer")) == (1, 3)
    assert found.one("participant_oldest_held_seconds", role="learner") > 0
    assert found.one("participants", role="learner", state="alive") == 1
    assert found.one("participants", role="learner", state="dead") == 0


def test_every_kind_of_segment_has_its_numbers(name):
    names = [f"{name}-{kind}" for kind in ("records", "weights", "replay")]
    with (
        rollway.RecordServer(SCHEMA, rollway.ShmTransport(names[0])) as records,
        WeightSync.from_state_dict(EXAMPLE, name=names[1]) as weights,
        WeightSync.attach(names[1]) as reader,
        rollway.replay.TransitionBuffer(4, 1, 1, name=names[2]) as buffer,
    ):
        records.submit({"x": [1, 2, 3]}, version=2)
        records.publish(7)
        reader.read_weights()
        for _ in range(2):
            weights.write_weights(EXAMPLE)
        column, row = np.zeros((2, 1), np.float32), np.zeros(2, np.float32)
        buffer.add(column, column, row, column, row, row)
        found = seen(*names)
    assert found.one("ready_records", kind="records") == 1
    assert found.one("participant_versions_behind", kind="records", role="producer") == 5
    assert found.one("participant_unread", kind="records") == 1
    assert found.one("version_total", kind="weights") == 3
    assert found.one("participant_versions_behind", kind="weights", role="reader") == 2
    assert found.one("published_age_seconds", kind="weights") < found.one(
        "participant_seconds_total", role="writer", activity="work"
    )
    assert found.one("fill_ratio", kind="replay") == 0.5


def test_the_seconds_of_a_participant_add_up_to_its_time(name):
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)):
        inspection = Inspection(name)
        (before,) = inspection.look().participants
        found = seen(name)
        (after,) = inspection.look().participants
    seconds = [found.one("participant_seconds_total", activity=activity) for activity in ACTIVITIES]
    assert before.wall_ns / 1e9 <= sum(seconds) <= after.wall_ns / 1e9


def test_two_handles_of_one_process_have_a_series_each(name):
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)):
        with rollway.ShmClient(name, EXAMPLE) as one, rollway.ShmClient(name, EXAMPLE) as other:
            one.send(EXAMPLE)
            other.send(EXAMPLE)
            other.send(EXAMPLE)
            found = seen(name)
    assert sorted(found.of("participant_committed_total", role="producer")) == [1, 2]
    keys = [(sample.name, *sorted(sample.labels.items())) for sample in found.samples]
    assert len(keys) == len(set(keys))


def test_every_metric_says_what_it_means_in_the_words_of_the_table(name):
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)) as server:
        server.submit(EXAMPLE)
        families = seen(name).families
    for full, family in families.items():
        key = full.removeprefix("rollway_")
        if family.type == "summary":
            assert family.documentation == HISTOGRAMS[key.removesuffix("_seconds")]
        else:
            number = of_segments()[key]
            assert (family.documentation, family.type) == (number.sentence, "counter" if number.only_grows else "gauge")


def test_a_key_that_two_kinds_of_segments_have_means_the_same():
    sentences = {}
    for group in OUTSIDE:
        for key, number in GROUPS[group].items():
            if key != "bytes":
                assert sentences.setdefault(key, number) == number, key


def test_a_damaged_segment_spoils_no_scrape(name):
    odd = Path(_core.shm_directory()) / f"rollway.{name}-odd"
    odd.touch(0o600)
    odd.write_bytes(b"no segment" * 1000)
    try:
        with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)):
            found = seen()
    finally:
        odd.unlink()
    assert found.one("segment_readable", segment=f"{name}-odd") == 0
    assert found.one("segment_readable", segment=name) == 1


def test_a_segment_that_is_gone_is_gone_from_the_metrics(name):
    collector = SegmentCollector()
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)):
        assert name in labels_of(collector)
    assert name not in labels_of(collector)


def labels_of(collector):
    return {sample.labels.get("segment") for family in collector.collect() for sample in family.samples}


def test_a_segment_that_was_asked_for_and_is_not_there_is_not_readable(name):
    assert seen(name).one("segment_readable", segment=name, kind="unknown") == 0


def value_of(collector, name):
    return next(
        sample.value for family in collector.collect() for sample in family.samples if sample.name == f"rollway_{name}"
    )


def test_a_counter_does_not_fall_while_its_segment_exists(name):
    collector = SegmentCollector(name)
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)) as server:
        server.submit(EXAMPLE)
        assert value_of(collector, "samples_committed_total") == 1
        collector._last = dict.fromkeys(collector._last, 5.0)  # as if the last look had counted some twice
        assert value_of(collector, "samples_committed_total") == 5
        assert value_of(collector, "participant_committed_total") == 5
        assert value_of(collector, "ready_samples") == 1
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)):
        assert value_of(collector, "samples_committed_total") == 0


def test_without_prometheus_client_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(rollway.errors.MissingExtra, match=r"needs prometheus-client: pip install '\.\[metrics\]'"):
        SegmentCollector()
