"""Server.stats, Server.histograms and their OpenMetrics form: plain numbers that add up."""

import sys

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import rollway
from rollway.metrics import Collector, openmetrics

EXAMPLE = {"x": np.zeros(4, np.float32)}


def samples_of(text):
    families = list(text_string_to_metric_families(text))
    return {family.name: family for family in families}, {
        (sample.name, sample.labels.get("quantile")): sample.value for family in families for sample in family.samples
    }


def test_stats_are_plain_numbers():
    with rollway.Server(EXAMPLE, batch_size=2, transport=rollway.TcpTransport()) as server:
        assert all(type(value) is int for value in server.stats().values())


def test_openmetrics_can_be_parsed_and_says_what_stats_say(name):
    with rollway.Server(EXAMPLE, 2, [rollway.ShmTransport(name), rollway.TcpTransport()]) as server:
        with rollway.TcpClient("127.0.0.1", server.port, EXAMPLE) as client:
            for _ in range(5):
                client.send(EXAMPLE)
            client.wait(10)
            server.sample(timeout=10).release()
            families, values = samples_of(openmetrics(server))
    assert families["rollway_ready_samples"].type == "gauge"
    assert families["rollway_tcp_samples"].type == "counter"
    assert values["rollway_ready_samples", None] == 3
    assert values["rollway_samples_released_total", None] == 2
    assert values["rollway_tcp_samples_total", None] == 5
    assert values["rollway_tcp_connections", None] == 1
    assert values["rollway_queue_dwell_seconds_count", None] == 1
    assert 0 < values["rollway_queue_dwell_seconds", "0.5"] < 10
    (sample,) = families["rollway_ready_samples"].samples
    assert sample.labels == {"ring": name}


def test_a_collector_reads_anew_each_time():
    with rollway.Server(EXAMPLE, batch_size=2) as server:
        collector = Collector(server)

        def ready():
            return next(f.samples[0].value for f in collector.collect() if f.name == "rollway_ready_samples")

        assert ready() == 0
        server.submit(EXAMPLE)
        assert ready() == 1


def test_copies_from_the_network_are_timed_like_those_from_shared_memory():
    with rollway.Server(EXAMPLE, batch_size=4, transport=rollway.TcpTransport()) as server:
        with rollway.TcpClient("127.0.0.1", server.port, EXAMPLE) as client:
            client.send(EXAMPLE)
            client.wait(10)
            copied = server.histograms()["memcpy"]
            assert copied.count == 1
            assert 0 < copied.p50_ns < 1_000_000_000
            server.reset_histograms()
            assert server.histograms()["memcpy"].count == 0


def test_a_histogram_starts_empty():
    with rollway.Server(EXAMPLE, batch_size=2) as server:
        assert {name: hist.count for name, hist in server.histograms().items()} == {
            "memcpy": 0,
            "queue_dwell": 0,
            "wait": 0,
        }


def ready_samples(text):
    families, _ = samples_of(text)
    return {sample.labels["ring"]: sample.value for sample in families["rollway_ready_samples"].samples}


def test_several_servers_are_told_apart_by_their_rings(name):
    with (
        rollway.Server(EXAMPLE, 2, rollway.ShmTransport(name)) as first,
        rollway.Server(EXAMPLE, 2) as second,
        rollway.Server(EXAMPLE, 2) as third,
    ):
        first.submit(EXAMPLE)
        third.submit_many({"x": np.zeros((2, 4), np.float32)})
        registry = CollectorRegistry(auto_describe=True)
        registry.register(Collector(first, second, third))
        assert ready_samples(openmetrics(first, second, third)) == {name: 1, "in-process": 0, "in-process-2": 2}
        assert registry.get_sample_value("rollway_ready_samples", {"ring": "in-process-2"}) == 2
        assert registry.get_sample_value("rollway_memcpy_seconds_count", {"ring": name}) == 1


def test_a_closed_server_shows_its_last_numbers_and_spoils_no_scrape(name):
    with rollway.Server(EXAMPLE, 2) as other:
        with rollway.Server(EXAMPLE, 2, [rollway.ShmTransport(name), rollway.TcpTransport()]) as server:
            worker = rollway.ShmClient(name, EXAMPLE)
            worker.send(EXAMPLE)
            before = server.stats()
        after = server.stats()
        assert after.keys() == before.keys() and server.resumed is False
        assert (after["ready_samples"], after["producers_alive"]) == (1, 1)
        worker.close()
        assert ready_samples(openmetrics(server, other)) == {name: 1, "in-process": 0}


def test_the_numbers_of_closed_records_can_be_read(name):
    with rollway.RecordServer({"x": "int32[*]"}, rollway.ShmTransport(name)) as server:
        server.submit({"x": np.zeros(3, np.int32)})
        before = server.stats()
    assert server.stats()["ready_records"] == before["ready_records"] == 1 and server.resumed is False


def test_without_prometheus_client_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with rollway.Server(EXAMPLE, 2) as server:
        for use in (Collector, openmetrics):
            with pytest.raises(
                rollway.errors.MissingExtra, match=r"needs prometheus-client: pip install '\.\[metrics\]' in the clone"
            ):
                use(server)
