"""`Guard` answers only those who may see the dashboard. Requests here are ASGI messages; the browser is elsewhere."""

import asyncio
import os
import socket

import pytest

from rollway.dashboard.guard import Guard, owner_of

TOKEN = "a token & of 16+"


@pytest.fixture
def own_connection():
    """Both ends of a connection of this process over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as client:
            with listener.accept()[0]:
                yield client.getsockname(), listener.getsockname()


async def inside(scope, receive, send):
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"the pages"})


def ask(address="127.0.0.1", token=None, kind="http", path="/", query="", ends=(None, None), headers=()):
    """Status, headers and text of the answer; of a WebSocket, the first message."""
    sent = []

    async def receive():
        return {"type": "websocket.connect"}

    async def send(message):
        sent.append(message)

    all_headers = {"host": f"{address}:8090", **dict(headers)}
    pairs = [(name.encode(), value.encode()) for name, value in all_headers.items()]
    scope = {"type": kind, "path": path, "query_string": query.encode(), "headers": pairs}
    scope |= {"client": ends[0], "server": ends[1]}
    asyncio.run(Guard(inside, address, 8090, token)(scope, receive, send))
    if kind == "websocket":
        return sent[0]["type"]
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, sent[1]["body"].decode()


def test_this_user_is_answered_on_loopback(own_connection):
    assert owner_of(*own_connection) == os.getuid()
    status, headers, text = ask(ends=own_connection)
    assert (status, text) == (200, "the pages")
    assert headers["content-security-policy"].startswith("default-src 'self' ")


def test_a_connection_whose_user_is_not_known_is_refused(own_connection):
    _, server = own_connection
    status, _, text = ask(ends=(("127.0.0.1", 1), server))
    assert status == 403 and "--token-file" in text
    assert ask(ends=(None, None))[0] == 403


def test_the_user_is_found_behind_ipv6_too():
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        with socket.create_connection(listener.getsockname()[:2]) as client:
            assert owner_of(client.getsockname()[:2], listener.getsockname()[:2]) == os.getuid()


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8090", "127.0.0.1.evil.example", "", "[::2]:8090"])
def test_a_foreign_host_name_is_refused_on_loopback(host, own_connection):
    status, _, text = ask(ends=own_connection, headers={"host": host})
    assert status == 403 and "loopback" in text
    assert ask(token=TOKEN, query="token=a+token+%26+of+16%2B", headers={"host": host})[0] == 403


@pytest.mark.parametrize("host", ["localhost:9000", "LOCALHOST", "127.0.0.1", "[::1]:8090"])
def test_every_name_of_loopback_is_answered(host, own_connection):
    assert ask(ends=own_connection, headers={"host": host})[0] == 200


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_a_page_of_another_origin_is_refused(kind, own_connection):
    here, there = {"origin": "http://127.0.0.1:8090"}, {"origin": "http://evil.example"}
    port = {"origin": "http://127.0.0.1:8091"}
    answers = [ask(kind=kind, ends=own_connection, headers=headers) for headers in (here, there, port)]
    if kind == "websocket":
        assert answers == ["websocket.accept", "websocket.close", "websocket.close"]
    else:
        assert [status for status, _, _ in answers] == [200, 403, 403]


def test_the_token_in_the_url_becomes_a_cookie():
    status, _, text = ask("0.0.0.0", TOKEN)
    assert status == 401 and "Open the URL" in text and TOKEN not in text
    status, headers, text = ask("0.0.0.0", TOKEN, path="/segment/run1", query="token=a+token+%26+of+16%2B")
    assert (status, headers["location"], text) == (303, "/segment/run1", "")
    assert "HttpOnly" in headers["set-cookie"] and "SameSite=Lax" in headers["set-cookie"]
    cookie = {"cookie": "other=1; " + headers["set-cookie"].partition(";")[0]}
    assert ask("0.0.0.0", TOKEN, headers=cookie)[0] == 200
    assert ask("0.0.0.0", TOKEN, kind="websocket", headers=cookie) == "websocket.accept"
    assert ask("0.0.0.0", TOKEN, kind="websocket") == "websocket.close"


@pytest.mark.parametrize("query", ["token=wrong", "token=", "token=%ff%fe", "token=a+token+%26+of+16%2B+and+more"])
def test_a_wrong_token_is_refused(query):
    assert ask("0.0.0.0", TOKEN, query=query)[0] == 401
    assert ask("0.0.0.0", TOKEN, headers={"cookie": f"rollway-dashboard-8090={query[6:]}"})[0] == 401


def test_the_way_in_leads_to_no_other_site():
    for path in ("//evil.example/x", "/\\evil.example", "/a\r\nset-cookie: x=1"):
        location = ask("0.0.0.0", TOKEN, path=path, query="token=a+token+%26+of+16%2B")[1]["location"]
        assert location.startswith("/") and location[1] not in "/\\" and "\n" not in location
