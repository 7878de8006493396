"""Who may see the dashboard: this user on loopback, and beyond it those who have the token."""

import os
import socket
import urllib.error
import urllib.request
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import expect

import rollway
from tests.support.processes import Command

OPEN_SOCKET = """
    url => new Promise(resolve => {
        const socket = new WebSocket(url)
        socket.onopen = () => resolve("open")
        socket.onerror = () => resolve("refused")
    })
"""

AS_OTHER = """
    import encodings.idna, os, socket, sys, urllib.error, urllib.request
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
    try:
        print(urllib.request.urlopen(sys.argv[1]).status, flush=True)
    except urllib.error.HTTPError as refused:
        print(refused.status, refused.read().decode(), flush=True)
"""


def status(url):
    try:
        return urllib.request.urlopen(url, timeout=30).status
    except urllib.error.HTTPError as refused:
        return refused.status


def test_beyond_loopback_the_token_of_the_url_is_needed(start, visit):
    url = start("--host", "0.0.0.0").url
    port, token = urlsplit(url).port, urlsplit(url).query
    here = f"http://127.0.0.1:{port}/"
    assert token.startswith("token=") and len(token) > 30
    page = visit(here)
    expect(page.get_by_text("This dashboard needs its token")).to_be_visible()
    web_socket = f"ws://127.0.0.1:{port}/_nicegui_ws/socket.io/?EIO=4&transport=websocket"
    assert page.evaluate(OPEN_SOCKET, web_socket) == "refused"
    assert status(f"{here}_nicegui_ws/socket.io/?EIO=4&transport=polling") == 401
    page.goto(f"{here}?{token}")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert page.url == here
    assert page.evaluate(OPEN_SOCKET, web_socket) == "open"
    with rollway.Server({"x": np.zeros(1)}, 2, rollway.ShmTransport("late")):
        expect(page.get_by_text("late")).to_be_visible()  # over the WebSocket


def test_the_token_can_be_given_in_a_file(start, tmp_path):
    (tmp_path / "token").write_text("0123456789abcdef\n")
    url = start("--token-file", tmp_path / "token").url
    assert url.endswith("/?token=0123456789abcdef")
    assert status(url.partition("?")[0]) == 401


def test_a_token_that_is_too_short_is_refused(tmp_path):
    (tmp_path / "token").write_text("short")
    code, _, err = Command("dashboard", "--port", 0, "--token-file", tmp_path / "token").ends()
    assert code == 1 and "16 bytes or more" in " ".join(err.split())


def test_a_port_that_is_taken_is_an_error_that_says_what_to_do():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = Command("dashboard", "--port", taken.getsockname()[1]).ends()
    assert code == 1 and "Choose another --port" in " ".join(err.split()) and "Traceback" not in err


def test_an_address_of_another_machine_is_an_error_that_says_so():
    code, _, err = Command("dashboard", "--host", "203.0.113.9").ends()
    assert code == 1 and "Is --host an address of this machine?" in " ".join(err.split())


def test_a_foreign_name_for_loopback_is_refused(url):
    request = urllib.request.Request(url, headers={"Host": "evil.example"})
    assert status(request) == 403


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_another_user_of_the_machine_is_refused_on_loopback(url, child):
    assert child(AS_OTHER, url).line().startswith("403 This dashboard answers its own user only")
