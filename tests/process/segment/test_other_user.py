"""Another user of this machine: what a process under another uid can reach of a learner. Needs root, to become one."""

import os
import shutil
import socket
import tempfile
from pathlib import Path

import numpy as np
import pytest

import rollway
from tests.support.processes import until

OTHER = 65534
EXAMPLE = {"secret_leaf": np.zeros(4, np.float32)}
RECORDS = {"secret_tokens": "int32[*]"}

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")

# Imports first: the interpreter and the checkout may lie in directories that only root may enter.
AS_OTHER = """
import encodings.idna, os, socket, sys
import numpy as np
import rollway
from pathlib import Path
example = {"secret_leaf": np.zeros(4, np.float32)}
def refused(call, *args, **settings):
    try:
        call(*args, **settings)
    except rollway.RollwayError as error:
        print(type(error).__name__, str(error).replace("\\n", " "), flush=True)
    except OSError as error:
        print(type(error).__name__, error, flush=True)
    else:
        print("let in", flush=True)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
"""


@pytest.fixture(autouse=True)
def directory(monkeypatch):
    """A directory for segments that every user may write to, as /dev/shm is; empty at the end."""
    path = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="two-users-"))
    path.chmod(0o1777)
    monkeypatch.setenv("ROLLWAY_SHM_DIR", str(path))
    yield path
    left = [one.name for one in path.iterdir()]
    shutil.rmtree(path)
    assert not left


def token_files(directory):
    return list(directory.glob("rollway-token.*"))


def squat(path, content):
    """Puts a file of the other user there."""
    path.write_bytes(content)
    path.chmod(0o600)
    os.chown(path, OTHER, OTHER)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# ── segments ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_another_user_attaches_to_no_segment(child):
    ring = rollway.Server(EXAMPLE, 1, rollway.ShmTransport("ring"))
    records = rollway.RecordServer(RECORDS, rollway.ShmTransport("records"))
    weights = rollway.SharedWeightSync.from_state_dict({"w": np.ones(4, np.float32)}, shm_name="weights")
    table = rollway.ReplayBuffer(capacity=8, obs_dim=2, action_dim=1, name="table")
    with ring, records, weights, table:
        other = child(
            AS_OTHER
            + """
refused(rollway.ShmClient, "ring", example)
refused(rollway.ShmRecordClient, "records", {"secret_tokens": "int32[*]"})
refused(rollway.SharedWeightSync.attach, "weights")
refused(rollway.ReplayBuffer.attach, "table")
print("secret" in str(rollway.segments()), len(rollway.gc()), flush=True)
"""
        )
        for name in ("ring", "records", "weights", "table"):
            said = other.line()
            assert "must belong to user 65534" in said and f"'{name}' belongs to user 0" in said
        other.says("False 0")
        other.ends()
        assert {one.name for one in rollway.segments() if one.alive} == {"ring", "records", "weights", "table"}


def test_a_segment_name_that_another_user_took_is_an_error_at_creation(directory, child):
    other = child(AS_OTHER + "(Path(sys.argv[1]) / 'rollway.taken').write_bytes(bytes(1 << 16))", directory)
    other.ends()
    with pytest.raises(rollway.RollwayError, match="'taken' belongs to user 65534"):
        rollway.Server(EXAMPLE, 1, rollway.ShmTransport("taken"))
    with pytest.raises(rollway.RollwayError, match="'taken' belongs to user 65534"):
        rollway.ShmClient("taken", EXAMPLE)
    (directory / "rollway.taken").unlink()


# ── the token of a learner that was given none ────────────────────────────────────────────────────────────────────────


def test_another_user_gets_nothing_from_loopback_and_brings_nothing_in(directory, child):
    sync = rollway.SharedWeightSync.from_state_dict({"secret_leaf": np.ones(4, np.float32)})
    records = rollway.RecordServer(RECORDS, rollway.TcpTransport())
    with sync, rollway.Server(EXAMPLE, 1, rollway.TcpTransport(weights=sync)) as server, records:
        other = child(
            AS_OTHER
            + """
port, of_records = map(int, sys.argv[1:])
for token in (None, "a guess"):
    refused(rollway.TcpClient, "127.0.0.1", port, example, token=token)
    refused(rollway.TcpClient, "127.0.0.1", port, {"another": np.zeros(1)}, token=token)
    refused(rollway.TcpWeights, "127.0.0.1", port, token=token)
    refused(rollway.TcpRecordClient, "127.0.0.1", of_records, {"secret_tokens": "int32[*]"}, token=token)
""",
            server.port,
            records.port,
        )
        for _ in range(4):
            said = other.line()
            assert said.startswith("NotAuthorized") and "the learner asks for a token" in said
            assert f"{directory}/rollway-token." in said and "belongs to user 0" in said and "secret" not in said
        for _ in range(4):
            said = other.line()
            assert said.startswith("NotAuthorized") and "not the learner's" in said and "secret" not in said
        other.ends()
        assert server.stats()["tcp_accepted"] == records.stats()["tcp_accepted"] == 0
        with rollway.TcpClient("127.0.0.1", server.port, EXAMPLE) as client:  # the learner's own user is let in
            client.send({"secret_leaf": np.full(4, 7, np.float32)})
        assert server.sample(timeout=10).batch["secret_leaf"].tolist() == [[7.0] * 4]


def test_another_user_cannot_read_or_replace_the_token(directory, child):
    with rollway.Server(EXAMPLE, 1, rollway.TcpTransport()) as server:
        (path,) = token_files(directory)
        assert path.stat().st_mode & 0o7777 == 0o600 and path.stat().st_uid == 0
        other = child(
            AS_OTHER
            + """
path = Path(sys.argv[1])
refused(path.read_bytes)
refused(path.unlink)
refused(path.write_bytes, b"mine")
print(len(rollway.gc()), flush=True)
""",
            path,
        )
        assert [other.line().split()[0] for _ in range(3)] == ["PermissionError"] * 3
        other.says("0")
        other.ends()
        assert token_files(directory) == [path]
        with rollway.TcpClient("127.0.0.1", server.port, EXAMPLE):
            pass


def test_a_token_file_that_another_user_put_there_is_an_error_and_not_trusted(directory):
    with rollway.Server(EXAMPLE, 1, rollway.TcpTransport()) as server:
        port, (path,), content = server.port, token_files(directory), token_files(directory)[0].read_bytes()
    assert not path.exists()
    squat(path, content)
    with pytest.raises(rollway.RollwayError, match=r"rollway-token\..*belongs to user 65534.*token="):
        rollway.Server(EXAMPLE, 1, rollway.TcpTransport(port)).start()
    assert path.read_bytes() == content
    with rollway.Server(EXAMPLE, 1, rollway.TcpTransport(port, token="given by hand")) as server:
        with pytest.raises(rollway.NotAuthorized, match="belongs to user 65534"):
            rollway.TcpClient("127.0.0.1", port, EXAMPLE)
        with rollway.TcpClient("127.0.0.1", port, EXAMPLE, token="given by hand"):
            pass
    path.unlink()


def squat_names_of_free_ports(directory, is_taken):
    """Takes the names of the token files of ports that the system gives out, as far as ``is_taken`` says so."""
    with rollway.Server(EXAMPLE, 1, rollway.TcpTransport()):
        (path,) = token_files(directory)
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    names = [path.with_suffix(f".{port}") for port in range(low, high + 1) if is_taken(port)]
    for name in names:
        name.symlink_to("nowhere")
        os.chown(name, OTHER, OTHER, follow_symlinks=False)
    return names


def test_a_server_takes_another_port_where_another_user_took_its_file_name(directory):
    names = squat_names_of_free_ports(directory, lambda port: port // 2 % 2)
    for _ in range(10):
        with (
            rollway.Server(EXAMPLE, 1, rollway.TcpTransport()) as server,
            rollway.TcpClient("127.0.0.1", server.port, EXAMPLE),
        ):
            pass
    for name in names:
        name.unlink()


def test_a_server_says_what_to_do_when_another_user_took_every_file_name(directory):
    names = squat_names_of_free_ports(directory, lambda port: True)
    for _ in range(2):  # and leaves nothing behind
        with pytest.raises(rollway.RollwayError, match=r"belongs to user 65534.* 64 other .*token=.*ROLLWAY_SHM_DIR"):
            rollway.Server(EXAMPLE, 1, rollway.TcpTransport()).start()
    with rollway.Server(EXAMPLE, 1, rollway.TcpTransport(token="given by hand")):
        pass
    for name in names:
        name.unlink()


# ── the port ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_clients_do_not_talk_to_a_learner_of_another_user_that_took_the_port(directory, child):
    port = free_port()
    other = child(
        AS_OTHER
        + """
with rollway.Server(example, 1, rollway.TcpTransport(int(sys.argv[1]))) as server:
    print("listening", flush=True)
    sys.stdin.readline()
    print(server.stats()["tcp_accepted"], server.stats()["tcp_samples"], flush=True)
""",
        port,
    )
    other.says("listening")
    with pytest.raises(rollway.NotAuthorized, match="belongs to user 65534"):
        rollway.TcpClient("127.0.0.1", port, EXAMPLE)
    with pytest.raises(rollway.NotAuthorized, match="belongs to user 65534"):
        rollway.TcpWeights("127.0.0.1", port)
    with pytest.raises(rollway.NotAuthorized, match="not the learner's"):
        rollway.TcpClient("127.0.0.1", port, EXAMPLE, token="a weak one")
    other.tell()
    other.says("0 0")
    other.ends()


def test_clients_do_not_talk_to_a_program_that_took_the_port_and_asks_for_no_token(child):
    port = free_port()
    other = child(
        AS_OTHER
        + """
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    print("listening", flush=True)
    for _ in range(2):
        caller, _ = listener.accept()
        preamble = caller.recv(40, socket.MSG_WAITALL)
        caller.sendall(preamble[:6] + b"\\0\\0" + bytes(32))  # the same protocol, no token
        heard = preamble
        while more := caller.recv(4096):
            heard += more
        print(len(heard), b"secret" in heard, flush=True)
""",
        port,
    )
    other.says("listening")
    for token in (None, "a weak one"):
        with pytest.raises(rollway.NotAuthorized):
            rollway.TcpClient("127.0.0.1", port, EXAMPLE, token=token)
        other.says("40 False")
    other.ends()


def test_clients_do_not_talk_through_a_relay_of_another_user_to_a_learner_on_another_port(child):
    port = free_port()
    with rollway.Server(EXAMPLE, 1, rollway.TcpTransport()) as server:
        other = child(
            AS_OTHER
            + """
port, learner = map(int, sys.argv[1:])
with socket.create_server(("127.0.0.1", port)) as listener:
    print("listening", flush=True)
    caller, _ = listener.accept()
    with socket.create_connection(("127.0.0.1", learner)) as onward:
        onward.sendall(caller.recv(40, socket.MSG_WAITALL))
        caller.sendall(onward.recv(40, socket.MSG_WAITALL))
        heard = b""
        while more := caller.recv(4096):
            heard += more
        print(len(heard), flush=True)
""",
            port,
            server.port,
        )
        other.says("listening")
        with pytest.raises(rollway.NotAuthorized, match="asks for a token"):
            rollway.TcpClient("127.0.0.1", port, EXAMPLE)
        other.says("0")
        other.ends()
        until(lambda: server.stats()["tcp_connections"] == 0)
        assert server.stats()["tcp_accepted"] == 0
