"""What a run says about itself: counts, shares of time, the table, the lines and the curve."""

import io
import math

import pytest
from rich.console import Console

from rollway.algorithms.progress import Progress, ProgressTracker
from rollway.cli.train import curve
from rollway.cli.train.screen import Screen, line


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def arrive(board, **changes):
    board.arrived(**{"steps": 10, "returns": [], "staleness": 0, "waited_s": 0.0, "spent_s": 1.0, **changes})


def moment(board, **changes):
    return board.progress(1, **{"version": 3, "queue_depth": 0, **changes})


def test_the_mean_return_is_that_of_the_last_episodes():
    board = ProgressTracker(3)
    assert math.isnan(moment(board).mean_return)
    arrive(board, returns=[100.0, 2.0])
    assert (moment(board).mean_return, moment(board).window_full) == (51.0, False)
    arrive(board, returns=[3.0, 4.0])
    assert (moment(board).mean_return, moment(board).window_full, moment(board).episodes) == (3.0, True, 4)


def test_rates_and_shares_are_of_the_time_that_passed():
    clock = Clock()
    board = ProgressTracker(3, clock)
    clock.now += 4
    board.waited(1.0)
    arrive(board, steps=800, staleness=2, waited_s=0.5, spent_s=2.0)
    arrive(board, steps=200, staleness=3, waited_s=0.5, spent_s=2.0)
    now = moment(board)
    assert (now.elapsed_s, now.steps_per_s, now.staleness) == (4.0, 250.0, 2.5)
    assert (now.learner_waiting, now.collectors_waiting) == (0.25, 0.25)


def test_what_is_long_past_does_not_count_as_recent():
    clock = Clock()
    board = ProgressTracker(3, clock)
    arrive(board, steps=1_000_000, staleness=50)
    moment(board)
    for _ in range(30):
        clock.now += 1
        arrive(board, steps=5, staleness=1)
        now = moment(board)
    assert now.steps_per_s == pytest.approx(5) and now.staleness == 1 and now.env_steps == 1_000_150


def test_counts_go_on_from_where_they_were():
    clock, later = Clock(), Clock()
    board, again = ProgressTracker(3, clock), ProgressTracker(3, later)
    clock.now += 8
    arrive(board, steps=800, returns=[1.0, 2.0, 6.0, 7.0])
    again.load_state_dict(board.state_dict())
    later.now += 2
    arrive(again, steps=200, returns=[8.0])
    now = moment(again)
    assert (now.elapsed_s, now.env_steps, now.episodes, now.mean_return) == (10.0, 1000, 5, 7.0)
    assert now.steps_per_s == 100.0
    assert Progress.of(now.numbers()) == now


def history():
    clock = Clock()
    board = ProgressTracker(20, clock)
    moments = []
    for step in range(50):
        clock.now += 1
        arrive(board, returns=[step * 10.0], staleness=1, waited_s=0.2)
        board.waited(0.1)
        moments.append(moment(board, deaths=step // 20, restarts=step // 20, collectors=2, losses={"value_loss": 0.5}))
    return moments


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_shows_every_number(width):
    out = Console(file=io.StringIO(), width=width, force_terminal=False)
    out.print(Screen(out, "a run", 1000, 475.0, "rollout").table(history()[-1]))
    text = out.file.getvalue()
    for said in (
        "500 / 1,000 steps",
        "395.0",
        "ends at 475",
        "0:50",
        "10%",
        "2 deaths, 2 restarts",
        "rollouts wait",
        "20%",
    ):
        assert said.strip() in text, text
    assert max(map(len, text.splitlines())) <= width


def test_a_line_says_the_same_without_a_terminal():
    out = Console(file=io.StringIO(), width=200, force_terminal=False)
    with Screen(out, "a run", 1000, None, "chunk") as screen:
        screen.started([11, 12])
        screen.progressed(history()[-1])
        screen.progressed(history()[-1])  # a moment later: not again
        screen.died("collector 1 (pid 12) was killed by SIGKILL\nand more")
    lines = out.file.getvalue().splitlines()
    assert lines[0] == "a run" and "pid 11, 12" in lines[1] and "SIGKILL" in lines[3] and len(lines) == 4
    assert "return    395.0" in lines[2] and "2 deaths" in lines[2]


def test_a_run_without_an_episode_has_a_line_and_a_curve(tmp_path):
    now = moment(ProgressTracker(5))
    assert "return        -" in line(now)
    curve.draw(tmp_path / "none.png", [now], "nothing yet", goal=1.0)
    assert (tmp_path / "none.png").read_bytes()[:4] == b"\x89PNG"


def test_the_curve_is_a_picture(tmp_path):
    curve.draw(tmp_path / "curve.png", history(), "APPO on a made-up task", goal=475.0)
    assert (tmp_path / "curve.png").stat().st_size > 10_000
