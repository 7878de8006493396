"""Every key of `stats()` and of `histograms()` has a sentence: in the table, in docs/numbers/, and as HELP text."""

import re

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import rollway
from rollway.metrics import openmetrics
from rollway.metrics.numbers import GROUPS, HISTOGRAMS, STATS
from rollway.transport import Forwarder, RecordForwarder
from tests import ROOT

EXAMPLE = {"x": np.zeros(1, np.float32)}
SCHEMA = {"x": "float32[*]"}
WEIGHTS = {"w": np.zeros(2, np.float32)}


def keys_of(name):
    return {key for group in STATS[name] for key in GROUPS[group]}


@pytest.fixture
def stats(name):
    """What each class says, by its name."""
    found = {}
    shm, tcp = rollway.ShmTransport(name), rollway.TcpTransport()
    with rollway.Server(EXAMPLE, 1, [shm, tcp]) as server:
        with rollway.ShmClient(name, EXAMPLE) as local, rollway.TcpClient("127.0.0.1", server.port, EXAMPLE) as remote:
            found |= {"Server": server.stats(), "ShmClient": local.stats(), "TcpClient": remote.stats()}
        with Forwarder(f"{name}-node", EXAMPLE, "127.0.0.1", server.port) as forwarder:
            found |= {"Forwarder": forwarder.stats()}
    with rollway.RecordServer(SCHEMA, [rollway.ShmTransport(name), tcp]) as server:
        with (
            rollway.ShmRecordClient(name, SCHEMA) as local,
            rollway.TcpRecordClient("127.0.0.1", server.port, SCHEMA) as remote,
        ):
            found |= {"RecordServer": server.stats(), "ShmRecordClient": local.stats()}
            found |= {"TcpRecordClient": remote.stats()}
        with RecordForwarder(f"{name}-node", SCHEMA, "127.0.0.1", server.port) as forwarder:
            found |= {"RecordForwarder": forwarder.stats()}
    with rollway.SharedWeightSync.from_state_dict(WEIGHTS) as sync, sync.serve(tcp) as endpoint:
        with rollway.TcpWeights("127.0.0.1", endpoint.port) as remote:
            found |= {"SharedWeightSync": sync.stats(), "TcpWeights": remote.stats()}
    with rollway.ReplayBuffer(2, obs_dim=1, action_dim=1) as buffer:
        found |= {"ReplayBuffer": buffer.stats()}
    with rollway.RolloutRingBuffer(num_envs=1, num_steps=1, obs_dim=1, action_dim=1) as ring:
        found |= {"RolloutRingBuffer": ring.stats()}
    return found


def test_every_key_has_a_sentence_and_no_sentence_is_without_a_key(stats):
    assert stats.keys() == STATS.keys() - {"AtroposSHMGenerator"}  # which is tested where SkyRL is
    for name, numbers in stats.items():
        missing = {"dropped_newest"} if name == "RolloutRingBuffer" else set()
        assert numbers.keys() == keys_of(name) - missing, name


def test_a_key_that_two_kinds_of_servers_have_means_the_same():
    sentences = {}
    for name in ("Server", "RecordServer"):
        for group in STATS[name]:
            for key, number in GROUPS[group].items():
                assert sentences.setdefault(key, number) == number, key


def test_every_metric_says_what_it_means(name):
    records = rollway.RecordServer(SCHEMA, rollway.TcpTransport())
    with rollway.Server(EXAMPLE, 1, [rollway.ShmTransport(name), rollway.TcpTransport()]) as ring, records:
        families = {family.name: family for family in text_string_to_metric_families(openmetrics(ring, records))}
    numbers = {key: GROUPS[group][key] for group in GROUPS for key in GROUPS[group]}
    for name, family in families.items():
        key = name.removeprefix("rollway_")
        if family.type == "summary":
            assert family.documentation == HISTOGRAMS[key.removesuffix("_seconds")]
        elif key not in ("bytes", "lane_bytes"):  # of which there are several
            assert family.documentation == numbers[key].sentence
            assert family.type == ("counter" if numbers[key].only_grows else "gauge"), name
    assert families.keys() >= {"rollway_ready_samples", "rollway_records_committed", "rollway_tcp_waited"}
    assert families["rollway_bytes"].documentation == "Bytes of the segment."


def test_the_pages_on_numbers_have_every_key_with_its_sentence():
    pages = [page.read_text() for page in (ROOT / "docs/numbers").glob("*.md")]
    title, found, classes = "", {}, {}
    for line in "\n".join(pages).splitlines():
        title = line.removeprefix("## ") if line.startswith("## ") else title
        if row := re.fullmatch(r"\| `(\w+)` \| (grows )?\| (.*) \|", line):
            found.setdefault(title, {})[row[1]] = (row[3], bool(row[2]))
        elif row := re.fullmatch(r"\| `(\w+)` \| (\[.*) \|", line):
            classes[row[1]] = tuple(re.findall(r"\[(.*?)\]\(\w+\.md#", row[2]))
    expected = {group: {key: tuple(number) for key, number in keys.items()} for group, keys in GROUPS.items()}
    expected["Histograms"] = {key: (sentence, False) for key, sentence in HISTOGRAMS.items()}
    assert found == expected
    assert classes == STATS


def test_the_sentences_are_sentences():
    sentences = [number.sentence for group in GROUPS.values() for number in group.values()]
    for sentence in (*sentences, *HISTOGRAMS.values()):
        assert re.fullmatch(r"[A-Z].{15,}\.", sentence), sentence
