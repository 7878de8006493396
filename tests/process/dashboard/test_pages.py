"""`rollway dashboard` in a real browser: what people see of a run."""

import os
import re
import signal
from urllib.parse import urlsplit

import numpy as np
import pytest
from playwright.sync_api import expect

import rollway
from rollway.weights import WeightSync
from tests.support.processes import Child
from tests.support.segments import overwrite

EXAMPLE = {"obs": np.zeros(4, np.float32), "reward": np.float32(0)}

LEARNER = """
    import sys, numpy as np, rollway
    example = {"obs": np.zeros(4, np.float32), "reward": np.float32(0)}
    with rollway.Server(example, 8, rollway.ShmTransport(sys.argv[1]), num_buffers=2) as server:
        print("up", flush=True)
        for sample in server.dataset_iter():
            pass
"""

PRODUCER = """
    import sys, time, numpy as np, rollway
    with rollway.ShmClient(sys.argv[1], {"obs": np.zeros(4, np.float32), "reward": np.float32(0)}) as client:
        print("up", flush=True)
        while True:
            client.send({"obs": np.arange(4, dtype=np.float32), "reward": np.float32("nan")}, version=5)
            time.sleep(0.001)
"""


@pytest.fixture(scope="module")
def run(shm):
    """The ring run1 with a learner and two producers: the processes."""
    learner = Child(LEARNER, "run1")
    learner.says("up")
    producers = [Child(PRODUCER, "run1") for _ in range(2)]
    for producer in producers:
        producer.says("up")
    yield learner, *producers
    for process in (learner, *producers):
        process.kill()
        process.process.communicate()
    rollway.gc()


def card(page, name):
    return page.locator(".card", has_text=name)


def is_as_wide_as_the_window(page):
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_overview_shows_a_running_ring_and_its_rate(run, url, visit):
    page = visit(url)
    expect(page.get_by_text(re.compile("1 segment, 3 processes, .* of shared memory"))).to_be_visible()
    expect(card(page, "run1")).to_contain_text("live")
    expect(card(page, "run1")).to_contain_text(re.compile(r"[1-9][\d,]* samples/s"))
    expect(card(page, "run1").locator("canvas")).to_be_visible()


def test_a_stopped_learner_is_named(run, url, visit):
    learner = run[0]
    page = visit(url)
    learner.stop()
    expect(card(page, "run1")).to_contain_text(f"the learner is stopped (pid {learner.pid}: stopped")
    card(page, "run1").click()
    expect(page.locator(".verdict")).to_contain_text(f"the learner is stopped (pid {learner.pid}: stopped")
    row = page.locator("tr", has_text=str(learner.pid))
    expect(row.locator(".chip")).to_have_text("stopped")
    learner.resume()
    expect(row.locator(".chip")).to_have_text("alive")


def test_a_segment_has_a_page_with_plots_participants_and_a_peek(run, url, visit):
    page = visit(f"{url}segment/run1")
    for process, role in zip(run, ("learner", "producer", "producer"), strict=True):
        expect(page.locator("tr", has_text=str(process.pid))).to_contain_text(role)
    for title in ("samples per second", "fill", "share of time", "weights: versions behind"):
        expect(page.locator("section", has_text=title).locator("canvas")).to_be_visible()
    expect(page.locator("td", has_text="queue_dwell")).to_be_visible()
    page.get_by_role("button", name="Peek").click()
    leaf = page.locator("tr", has_text="float32[4]")
    expect(leaf).to_contain_text("obs")
    expect(page.locator("tr", has_text="reward").locator("b.bad")).to_have_text("3")
    expect(page.get_by_text("obs[4]: 0.0, 1.0, 2.0, 3.0").first).to_be_visible()
    expect(page.get_by_text(re.compile("its number .*, weights 5")).first).to_be_visible()


def test_the_order_of_participants_can_be_changed_and_the_page_paused(run, url, visit):
    page = visit(f"{url}segment/run1")
    first = page.locator(".participants tbody tr").first
    expect(first).to_contain_text("learner")
    page.get_by_role("button", name="rate", exact=True).click()
    expect(first).to_contain_text("producer")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("button", name="Continue")).to_be_visible()


def test_a_segment_that_vanishes_stays_as_ended(url, visit):
    page = visit(url)
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport("short")):
        expect(card(page, "short")).to_contain_text("live")
    expect(card(page, "short")).to_contain_text("It has ended")
    card(page, "short").click()
    expect(page.locator(".verdict")).to_contain_text("It has ended")
    expect(page.get_by_role("button", name="Peek")).to_be_disabled()


def test_a_damaged_segment_says_so(url, visit):
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport("odd")):
        overwrite("odd", b"ROLLWAY", b"rollway")
        page = visit(url)
        expect(card(page, "odd")).to_contain_text("unreadable")
        expect(card(page, "odd")).to_contain_text("is not a Rollway segment")
        overwrite("odd", b"rollway", b"ROLLWAY")
        expect(card(page, "odd")).to_contain_text("live")


def test_a_directory_that_is_not_there_is_said_until_it_is(start, visit, tmp_path):
    page = visit(start(ROLLWAY_SHM_DIR=str(tmp_path / "late")).url)
    expect(page.get_by_text("let ROLLWAY_SHM_DIR name a directory")).to_be_visible()
    (tmp_path / "late").mkdir()
    expect(page.get_by_text("No segments. They appear here")).to_be_visible()


def test_a_page_of_no_segment_says_so(url, visit):
    expect(visit(f"{url}segment/nowhere").get_by_text("No segment 'nowhere' was seen")).to_be_visible()


def test_it_fits_a_phone_without_scrolling_sideways(run, url, visit):
    long = "a" * 190
    with WeightSync({"w": (2,)}, name="weights"), rollway.Server(EXAMPLE, 2, rollway.ShmTransport(long)):
        page = visit(url, width=360, height=740, is_mobile=True, has_touch=True)
        for name in ("run1", "weights", long):
            expect(card(page, name)).to_be_visible()
        assert is_as_wide_as_the_window(page)
        for name in ("run1", "weights", long):
            page.goto(f"{url}segment/{name}")
            expect(page.locator(".participants tbody tr").first).to_be_visible()
            page.get_by_role("button", name="Peek").click()
            expect(page.locator(".peeked table")).to_be_visible()
            page.get_by_text("All numbers").click()
            expect(page.locator("table.narrow")).to_be_visible()
            assert is_as_wide_as_the_window(page)


def test_it_is_light_or_dark_as_the_browser_wishes(url, visit):
    def brightness(scheme):
        page = visit(url, color_scheme=scheme)
        expect(page.get_by_role("button", name="Pause")).to_be_visible()
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    assert brightness("light") > 600 and brightness("dark") < 150


def test_no_request_leaves_the_machine(run, url, visit):
    page = visit(url)
    card(page, "run1").click()
    page.get_by_role("button", name="Peek").click()
    expect(page.locator(".peeked table")).to_be_visible()
    hosts = {urlsplit(one).hostname for one in page.requests if not one.startswith(("data:", "blob:"))}
    assert hosts == {"127.0.0.1"} and any(one.startswith("ws:") for one in page.requests)


def test_a_named_segment_is_awaited_and_others_are_not_shown(start, visit):
    page = visit(start("mine").url)
    expect(card(page, "mine")).to_contain_text("There is no segment of this name yet.")
    with rollway.Server(EXAMPLE, 2, rollway.ShmTransport("other")):
        with rollway.Server(EXAMPLE, 2, rollway.ShmTransport("mine")):
            expect(card(page, "mine")).to_contain_text("live")
        expect(page.locator(".card")).to_have_count(1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly_while_a_browser_looks(number, start, visit):
    dashboard = start("nothing")
    command = dashboard.command
    expect(card(visit(dashboard.url), "nothing")).to_be_visible()
    os.killpg(command.process.pid, number)
    status, out, err = command.ends()
    assert (status, err) == (0 if number == signal.SIGINT else 128 + number, "")
    assert number != signal.SIGINT or "The dashboard has ended." in out
