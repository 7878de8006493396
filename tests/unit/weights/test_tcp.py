"""Weights over TCP within one process: every call and option of TcpWeights, `serve` and ``TcpTransport(weights=…)``.

What needs processes of its own is in process/weights/test_remote; cuts at every byte are in crates/core/tests/net/weights.rs.
"""

import contextlib
import pickle
import re
import threading

import numpy as np
import pytest

import rollway
from tests.support.lying_proxy import lying
from tests.support.processes import until

SOON = 20
TOKEN = "sixteen random bytes, or more"


def tree(number):
    """Leaves of several kinds, all of one number."""
    return {
        "body": {"w": np.full((3, 5), number, np.float32), "steps": np.array(number, np.int64)},
        "head": [np.full(7, number, np.float16), np.zeros((0, 2))],
    }


def filled(read):
    """The number that fills the leaves."""
    leaves = [read["body"]["w"], read["body"]["steps"], read["head"][0]]
    assert len({float(value) for leaf in leaves for value in np.ravel(leaf)}) == 1, "torn"
    return float(read["body"]["steps"])


@pytest.fixture
def sync():
    with rollway.SharedWeightSync.from_state_dict(tree(1)) as sync:
        yield sync


@pytest.fixture
def endpoint(sync):
    with sync.serve(rollway.TcpTransport()) as endpoint:
        yield endpoint


def connect(endpoint, **options):
    return rollway.TcpWeights("127.0.0.1", endpoint.port, **options)


def test_a_worker_reads_what_the_learner_wrote(sync, endpoint):
    with connect(endpoint) as weights:
        assert weights.wait_for_version(1, SOON) == 1
        assert filled(weights.read_weights()) == 1
        sync.write_weights(tree(2))
        assert weights.wait_for_version(2, SOON) == 2
        mine = tree(0)
        assert weights.read_weights_into(mine) == 2 == weights.version == weights.read_version
        assert filled(mine) == 2
        assert weights.connected and weights.last_error is None and not weights.closed
        assert weights.address == f"127.0.0.1:{endpoint.port}" and weights.name is None
    assert weights.closed
    weights.close()
    with pytest.raises(rollway.ConnectionClosedError, match="is closed"):
        weights.read_weights()


def test_weights_go_over_tls(sync, authority, certificate):
    with sync.serve(rollway.TcpTransport(tls=certificate, token=TOKEN)) as endpoint:
        with connect(endpoint, token=TOKEN, ca=authority.pem, server_name="learner.example") as weights:
            for number in (2, 3):
                sync.write_weights(tree(number))
                assert weights.wait_for_version(number, SOON) == number
                assert filled(weights.read_weights()) == number
        with pytest.raises(rollway.errors.TlsFailed, match="not valid for name"):
            connect(endpoint, token=TOKEN, ca=authority.pem, server_name="other.example")


def test_only_what_changed_travels_and_is_copied(sync, endpoint):
    with connect(endpoint) as weights:
        weights.wait_for_version(1, SOON)
        before = weights.stats()["bytes"]
        sync.update_weights({"body": {"steps": np.array(9, np.int64)}})
        weights.wait_for_version(2, SOON)
        assert weights.stats()["bytes"] - before == 8
        mine = tree(5)
        assert weights.read_weights_into(mine, since=1) == 2
        assert mine["body"]["steps"] == 9 and (mine["body"]["w"] == 5).all()


def test_torch_modules_are_read_into(torch):
    learner, worker = torch.nn.Linear(4, 3, dtype=torch.bfloat16), torch.nn.Linear(4, 3, dtype=torch.bfloat16)
    with (
        rollway.SharedWeightSync.from_state_dict(learner.state_dict()) as sync,
        sync.serve(rollway.TcpTransport()) as endpoint,
        connect(endpoint, like=worker.state_dict()) as weights,
    ):
        weights.wait_for_version(1, SOON)
        weights.read_weights_into(worker.state_dict())
        assert torch.equal(worker.weight, learner.weight) and torch.equal(worker.bias, learner.bias)


def test_before_the_first_version_there_is_nothing_to_read():
    with rollway.SharedWeightSync({"w": (2,)}) as sync, sync.serve(rollway.TcpTransport()) as endpoint:
        with connect(endpoint) as weights:
            assert weights.version == 0 and weights.read_weights_into({"w": np.zeros(2, np.float32)}) == 0
            with pytest.raises(rollway.errors.NothingPublished, match=re.escape(weights.address)):
                weights.read_weights()
            with pytest.raises(rollway.WaitTimeout, match=r"version 1 .* 0 is the latest, and the connection stands"):
                weights.wait_for_version(1, 0.01)


def test_a_wait_ends_when_the_version_comes(sync, endpoint):
    with connect(endpoint) as weights:
        got = []
        waiter = threading.Thread(target=lambda: got.append(weights.wait_for_version(3, SOON)))
        waiter.start()
        sync.write_weights(tree(2))
        sync.write_weights(tree(3))
        waiter.join(SOON)
        assert got == [3]


def test_samples_and_weights_share_a_port_and_a_token(sync):
    transport = rollway.TcpTransport(token=TOKEN, weights=sync)
    with rollway.Server(np.zeros(1), 1, transport) as server, connect(server, token=TOKEN) as weights:
        version = weights.wait_for_version(1, SOON)
        with rollway.TcpClient("127.0.0.1", server.port, np.zeros(1), token=TOKEN) as client:
            client.send(np.ones(1), version=version)
            assert server.stats()["producers_alive"] == 1, "a reader of weights is no worker"
        with server.sample(timeout=SOON) as sample:
            assert sample.info.versions.tolist() == [1]
        assert server.stats()["tcp_weight_clients"] == 1 and server.stats()["tcp_versions"] == 1
        for wrong in (None, "another token, of the same length"):
            with pytest.raises(rollway.NotAuthorized):
                connect(server, token=wrong)
        assert TOKEN not in repr(transport) and "weights" not in repr(transport)


def test_records_and_weights_share_a_port(sync):
    schema = {"tokens": "int32[*]"}
    with rollway.RecordServer(schema, rollway.TcpTransport(weights=sync)) as server, connect(server) as weights:
        weights.wait_for_version(1, SOON)
        with rollway.TcpRecordClient("127.0.0.1", server.port, schema) as client:
            client.send({"tokens": [1, 2]})
        assert server.read(timeout=SOON)["tokens"].tolist() == [1, 2]


def test_a_port_without_weights_and_a_port_of_weights_alone_say_so(endpoint):
    with rollway.Server(np.zeros(1), 1, rollway.TcpTransport()) as server:
        with pytest.raises(rollway.errors.ProtocolMismatch, match=r"offers no weights.*weights="):
            connect(server)
    with pytest.raises(rollway.errors.ProtocolMismatch, match="only gives out weights"):
        rollway.TcpClient("127.0.0.1", endpoint.port, np.zeros(1))


def test_nobody_there_is_an_error_in_time():
    with pytest.raises(rollway.LearnerUnreachable, match=re.escape("127.0.0.1:9")):
        rollway.TcpWeights("127.0.0.1", 9, connect_timeout_s=0.05)


def test_weights_that_differ_from_mine_are_an_error_that_names_the_leaf(endpoint):
    mine = tree(0)
    mine["body"]["w"] = np.zeros((3, 6), np.float32)
    with pytest.raises(
        rollway.SchemaMismatch, match=r"'body/w' is float32\[3,6\] here but float32\[3,5\] at the learner"
    ):
        connect(endpoint, like=mine)
    with connect(endpoint, like=tree(0)):
        pass


def test_a_host_reads_one_copy_by_its_name(sync, endpoint, name):
    with connect(endpoint, name=name) as weights, rollway.SharedWeightSync.attach(name) as other:
        assert weights.name == name
        sync.write_weights(tree(4))
        assert other.wait_for_version(2, SOON) == 2
        assert filled(other.read_weights()) == 4
        with pickle.loads(pickle.dumps(weights)) as unpickled:
            assert unpickled.name == name and filled(unpickled.read_weights()) == 4
        with pytest.raises(rollway.errors.SegmentInUse, match="writes the weights"):
            connect(endpoint, name=name)
        with pytest.raises(rollway.errors.SegmentInUse, match="a learner on another host"):
            other.write_weights(tree(5))
    with connect(endpoint) as weights, pytest.raises(TypeError, match="give them a name"):
        pickle.dumps(weights)


def test_a_name_that_weights_have_already_is_refused(sync, endpoint):
    with pytest.raises(rollway.errors.SegmentExists, match="another name"):
        connect(endpoint, name=sync.name)


def test_checksums_are_kept_on_the_way():
    with rollway.SharedWeightSync.from_state_dict(tree(3), checksum=True) as sync:
        with sync.serve(rollway.TcpTransport()) as endpoint, connect(endpoint) as weights:
            weights.wait_for_version(1, SOON)
            assert filled(weights.read_weights()) == 3


def test_while_the_server_is_away_the_last_version_is_there(sync, endpoint):
    with connect(endpoint) as weights:
        weights.wait_for_version(1, SOON)
        endpoint.stop()
        endpoint.stop()
        until(lambda: not weights.connected)
        assert weights.last_error
        assert filled(weights.read_weights()) == 1 and "version 1" in repr(weights)
        with sync.serve(rollway.TcpTransport(endpoint.port)):
            sync.write_weights(tree(2))
            assert weights.wait_for_version(2, SOON) == 2
        assert weights.stats()["connects"] == 2


def test_a_learner_that_shuts_its_weights_down_ends_the_wait(sync, endpoint):
    with connect(endpoint) as weights:
        weights.wait_for_version(1, SOON)
        sync.cleanup()
        with pytest.raises(rollway.ConnectionClosedError, match="shut down its weights"):
            weights.wait_for_version(2, SOON)
        assert filled(weights.read_weights()) == 1 and "lost" in repr(weights)


def test_a_learner_that_stays_away_is_given_up(endpoint):
    with connect(endpoint, reconnect_timeout_s=0.05) as weights:
        weights.wait_for_version(1, SOON)
        endpoint.stop()
        with pytest.raises(rollway.ConnectionClosedError, match="away"):
            weights.wait_for_version(2, SOON)


def test_a_learner_that_begins_anew_is_followed(name):
    with contextlib.ExitStack() as stack:
        first = rollway.SharedWeightSync.from_state_dict(tree(1))
        endpoint = first.serve(rollway.TcpTransport())
        for number in range(2, 6):
            first.write_weights(tree(number))
        weights = stack.enter_context(connect(endpoint, name=name))
        assert weights.wait_for_version(5, SOON) == 5
        attached = stack.enter_context(rollway.SharedWeightSync.attach(name))
        first.close()
        second = stack.enter_context(rollway.SharedWeightSync.from_state_dict(tree(100)))
        stack.enter_context(second.serve(rollway.TcpTransport(endpoint.port)))
        assert weights.wait_for_version(6, SOON) == 1
        mine = tree(5)
        assert weights.read_weights_into(mine, since=5) == 1
        assert filled(mine) == 100
        with pytest.raises(rollway.ConnectionClosedError, match="shut down"):
            attached.wait_for_version(6, SOON)
        with rollway.SharedWeightSync.attach(name) as again:
            assert filled(again.read_weights()) == 100


def test_a_learner_that_comes_back_with_other_weights_is_not_followed(endpoint, sync):
    with connect(endpoint) as weights:
        weights.wait_for_version(1, SOON)
        sync.close()
        with rollway.SharedWeightSync.from_state_dict({"w": np.zeros(2)}) as other:
            with other.serve(rollway.TcpTransport(endpoint.port)) as again:
                with pytest.raises(rollway.ConnectionClosedError, match="other weights"):
                    weights.wait_for_version(2, SOON)
                assert "'body/steps'" in again.last_refusal or "'w'" in again.last_refusal


def test_a_learner_that_closes_its_weights_first_leaves_nothing_behind(name):
    sync = rollway.SharedWeightSync.from_state_dict(tree(1), shm_name=name)
    with rollway.Server(np.zeros(1), 1, rollway.TcpTransport(weights=sync)) as server, connect(server) as weights:
        sync.close()
        assert weights.wait_for_version(1, SOON) == 1, "what was published is still given out"


@pytest.mark.parametrize("option", [{"threads": 0}, {"max_readers": 0}, {"max_buffers": 2}, {"port": 70000}])
def test_options_out_of_range_are_refused(endpoint, option):
    with pytest.raises(rollway.InvalidArgument, match=next(iter(option))):
        rollway.TcpWeights(**{"host": "127.0.0.1", "port": endpoint.port, **option})


@contextlib.contextmanager
def never_named(name):
    """A worker waits for that name all the while: what comes first must be what is made here at the end."""
    found = []

    def wait():
        with rollway.SharedWeightSync.attach(name, connect_timeout_s=SOON) as first:
            first.wait_for_version(1, SOON)
            found.append(list(first.read_weights()))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    yield
    with rollway.SharedWeightSync.from_state_dict({"honest": np.zeros(1)}, shm_name=name):
        waiting.join(SOON)
    assert found == [["honest"]]


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b'"float32",[3,5]', b'"float32",[3,9]', "do not fit"),
        (b'"float16",[7]', b'"float64",[7]', "do not fit"),
        (b'"float32",[3,5]', b'"float32",[3;5]', "cannot be read"),
        (b'"leaves"', b'"Leaves"', "cannot be read"),
        (b'["body/w"', b'["body/' + b"\xff" + b'"', "cannot be read"),
    ],
)
def test_a_lying_learner_is_refused_before_anything_has_a_name(endpoint, name, old, new, why):
    with lying(endpoint.port, old, new) as port, never_named(name):
        with pytest.raises(rollway.errors.ProtocolMismatch, match=why):
            rollway.TcpWeights("127.0.0.1", port, name=name, token=endpoint.token)


def test_other_weights_than_mine_take_no_name(endpoint, name):
    with never_named(name), pytest.raises(rollway.SchemaMismatch, match="leaf 'mine' is float64"):
        connect(endpoint, like={"mine": np.zeros(1)}, name=name)


def test_weights_that_take_more_than_max_bytes_are_refused_and_nothing_is_reserved(endpoint, name):
    said = r"need \d+ bytes .* max_bytes is 10000\D.*larger max_bytes"
    with never_named(name), pytest.raises(rollway.NotEnoughMemory, match=said):
        connect(endpoint, name=name, max_bytes=10_000)
    with connect(endpoint, max_bytes=1 << 20) as weights:
        assert weights.wait_for_version(1, SOON) == 1


def test_serving_offers_one_set_of_weights(sync):
    with pytest.raises(rollway.InvalidArgument, match="leave out"):
        sync.serve(rollway.TcpTransport(weights=sync))


def test_an_endpoint_that_fails_to_stop_does_not_keep_the_weights_open(name):
    class Stuck:
        def start(self, outlet):
            return self

        def stop(self):
            raise OSError("stuck on purpose")

    sync = rollway.SharedWeightSync.from_state_dict(tree(1), shm_name=name)
    sync.serve(Stuck())
    with pytest.raises(OSError, match="stuck on purpose"):
        sync.close()
    assert sync.closed, "the name fixture looks for the segment"
