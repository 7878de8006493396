"""The metrics over HTTP: which requests are answered, and that a bad peer stops no other."""

import contextlib
import socket
import ssl
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
import pytest

import rollway
from rollway.errors import AddressUnavailable, InvalidArgument, TlsFailed, TokenRequired
from rollway.metrics import Exporter, exporter

TOKEN = "0123456789abcdef"


def get(url, context=None, **headers):
    """Status, type and text of an answer."""
    try:
        with urlopen(Request(url, headers=headers), timeout=30, context=context) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except HTTPError as refused:
        return refused.status, refused.headers["Content-Type"], refused.read().decode()


def test_prometheus_gets_openmetrics_and_others_plain_text(name):
    with rollway.Server({"x": np.zeros(1)}, 2, rollway.ShmTransport(name)), Exporter(port=0, names=[name]) as exporter:
        line = f'rollway_batch_size{{kind="ring",segment="{name}"}} 2.0\n'
        status, kind, text = get(exporter.url, Accept="application/openmetrics-text; version=1.0.0")
        assert status == 200 and kind.startswith("application/openmetrics-text; version=1.0.0")
        assert line in text and text.endswith("# EOF\n")
        status, kind, text = get(exporter.url)
        assert status == 200 and kind.startswith("text/plain") and line in text and "# EOF" not in text


def test_only_the_metrics_are_served():
    with Exporter(port=0) as exporter:
        base = exporter.url.removesuffix("/metrics")
        assert get(base + "/")[0] == get(base + "/metrics?x=1")[0] == 200
        assert get(base + "/etc/passwd")[::2] == (404, "the metrics are at /metrics\n")


def test_a_token_is_asked_for():
    with Exporter(port=0, token=TOKEN) as exporter:
        for wrong in ({}, {"Authorization": TOKEN}, {"Authorization": f"Basic {TOKEN}"}):
            assert get(exporter.url, **wrong)[::2] == (401, "a token is needed: Authorization: Bearer TOKEN\n")
        for wrong in ("", TOKEN[:-1], TOKEN + "0", "é" * 16):
            assert get(exporter.url, Authorization=f"Bearer {wrong}")[0] == 401
        assert get(exporter.url, Authorization=f"Bearer {TOKEN}")[0] == 200
        assert get(exporter.url, Authorization=f"bearer  {TOKEN}")[0] == 200


def test_beyond_loopback_there_is_no_exporter_without_a_token():
    with pytest.raises(TokenRequired, match=r"refusing to listen on 0\.0\.0\.0:0 without a token: .* Set a token"):
        Exporter("0.0.0.0", 0)
    for short in ("", "short"):
        with pytest.raises(InvalidArgument, match=rf"token length = {len(short)} is out of range: at least 16 bytes"):
            Exporter("0.0.0.0", 0, token=short)
    with Exporter("0.0.0.0", 0, token=TOKEN) as exporter:
        assert get(exporter.url)[0] == 401 and get(exporter.url, Authorization=f"Bearer {TOKEN}")[0] == 200


def test_a_page_of_another_site_cannot_ask_on_loopback():
    with Exporter(port=0) as exporter:
        assert get(exporter.url, Host="example.org")[0] == 403
        assert get(exporter.url, Host="localhost:1")[0] == get(exporter.url, Host="127.0.0.1")[0] == 200


def test_a_peer_that_never_ends_its_request_is_cut_off(monkeypatch):
    monkeypatch.setattr("rollway.metrics.exporter._REQUEST_TIMEOUT_S", 0.2)
    with Exporter(port=0) as exporter, connected(exporter) as peer:
        peer.sendall(b"G")
        assert peer.recv(1) == b""


def test_an_address_that_cannot_be_had_is_named():
    with Exporter(port=0) as exporter:
        port = urlsplit(exporter.url).port
        with pytest.raises(
            AddressUnavailable, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use\."
        ):
            Exporter(port=port)
    with pytest.raises(AddressUnavailable, match=r"cannot listen on no\.such\.host\.invalid:0: "):
        Exporter("no.such.host.invalid", 0)
    with pytest.raises(InvalidArgument, match="port = 70000 is out of range: 0 to 65535"):
        Exporter(port=70000)


def test_it_listens_on_ipv6():
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        exporter = Exporter("::1", 0)
    except AddressUnavailable:
        pytest.skip("no IPv6 here")
    with exporter:
        assert "[::1]" in exporter.url and get(exporter.url)[0] == 200


def test_requests_are_encrypted_with_a_certificate(authority, certificate):
    with Exporter(port=0, tls=certificate) as exporter:
        context = ssl.create_default_context(cafile=authority.pem)
        assert exporter.url.startswith("https://")
        with connected(exporter):  # a peer that never speaks does not stop the next one
            assert get(exporter.url, context)[0] == 200


def test_a_certificate_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(TlsFailed, match=r"cannot use certificate .*none\.pem with key "):
        Exporter(port=0, tls=rollway.Tls(tmp_path / "none.pem", tmp_path / "none.key"))


@contextlib.contextmanager
def connected(exporter):
    where = urlsplit(exporter.url)
    with socket.create_connection((where.hostname, where.port), timeout=30) as peer:
        yield peer


def test_peers_that_never_ask_stop_no_other_and_too_many_are_turned_away():
    with Exporter(port=0) as one, contextlib.ExitStack() as silent:
        for _ in range(exporter._MOST_REQUESTS - 1):
            silent.enter_context(connected(one))
        assert get(one.url)[0] == 200
        peers = [silent.enter_context(connected(one)) for _ in range(2)]
        assert peers[1].recv(1) == b""


def test_a_peer_that_speaks_nonsense_or_leaves_is_no_error(capfd):
    with Exporter(port=0) as exporter:
        with connected(exporter) as peer:
            peer.sendall(b"\x16\x03\x01nonsense\r\n\r\n")
            assert b"400" in peer.recv(1000)
        with connected(exporter) as peer:
            peer.sendall(b"GET /metr")
        assert get(exporter.url)[0] == 200
    assert capfd.readouterr().err == ""


def test_a_machine_without_shared_memory_is_one_sentence_and_not_the_end(tmp_path, monkeypatch):
    with Exporter(port=0) as exporter:
        with monkeypatch.context() as elsewhere:
            elsewhere.setenv("ROLLWAY_SHM_DIR", str(tmp_path / "none"))
            status, _, text = get(exporter.url)
            assert status == 500 and text.startswith(f"looking for segments in {tmp_path}/none.")
        assert get(exporter.url)[0] == 200


def test_it_can_be_closed_twice_and_says_so():
    exporter = Exporter(port=0)
    assert repr(exporter) == f"<rollway.metrics.Exporter {exporter.url}>"
    exporter.close()
    exporter.close()
    exporter.wait()
    assert repr(exporter).endswith(" (closed)>")
    with pytest.raises(OSError):
        get(exporter.url)
