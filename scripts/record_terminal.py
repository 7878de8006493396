"""Records `rollway demo`, and `rollway top` while a worker is killed, as animated SVG files for the docs.

`python scripts/record_terminal.py [demo] [top]` runs the commands on a terminal of its own, and writes
docs/assets/demo.svg and docs/assets/top.svg. They play in any browser, also as an image in a README, without a script.
"""

import argparse
import contextlib
import fcntl
import html
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyte

ROOT = Path(__file__).resolve().parent.parent
ASSETS = ROOT / "docs" / "assets"

FRAME_S = 0.25
"""Frames are at least so far apart."""
LONGEST_S = 1.5
"""A picture that does not change is shown for no longer, but for the last one."""
LAST_S = 4.0
CELL_W, CELL_H, PAD, BAR = 7.2, 16, 14, 26

COLOURS = {
    "default": "#d7dce4", "black": "#2b303b", "red": "#ff7b72", "green": "#56d39b", "brown": "#e3b341",
    "blue": "#79b8ff", "magenta": "#d2a8ff", "cyan": "#56d4dd", "white": "#d7dce4",
}  # fmt: skip

Cell = tuple[str, str, bool]
"""A character, its colour, and whether it is bold."""
Line = tuple[Cell, ...]


@dataclass(frozen=True)
class Frame:
    at: float
    lines: tuple[Line, ...]
    caption: str


@dataclass
class Event:
    """Something to do when the screen has shown ``words``, and ``after`` more seconds have passed."""

    words: str
    after: float
    caption: str
    """Shown below the screen from then on; an empty one ends the recording."""
    action: Callable[[], None] = lambda: None


def record(
    command: list[str], columns: int, rows: int, environment: dict[str, str], events: list[Event]
) -> list[Frame]:
    """Runs a command on a terminal, and gives its pictures, up to its end or the last event."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    terminal = {**environment, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=terminal, start_new_session=True
    )
    os.close(follower)
    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    frames, caption, begin, due, next_event = [], "", time.monotonic(), 0.0, None
    try:
        while True:
            now = time.monotonic() - begin
            if select.select([leader], [], [], 0.02)[0]:
                try:
                    data = os.read(leader, 1 << 16)
                except OSError:  # the command has closed the terminal
                    data = b""
                if not data:
                    break
                stream.feed(data)
                continue  # the picture is not whole as long as there is more
            if events and next_event is None and any(events[0].words in line for line in screen.display):
                next_event = now + events[0].after
            if next_event is not None and now >= next_event:
                event, next_event = events.pop(0), None
                if not event.caption:
                    break
                caption = event.caption
                event.action()
            if now >= due:
                due = now + FRAME_S
                frames.append(Frame(now, picture(screen), caption))
        frames.append(Frame(time.monotonic() - begin, picture(screen), caption))
        return without_repeats(frames)
    finally:
        os.close(leader)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        process.wait()


def picture(screen: pyte.Screen) -> tuple[Line, ...]:
    lines = []
    for y in range(screen.lines):
        cells = [screen.buffer[y][x] for x in range(screen.columns)]
        lines.append(tuple((cell.data or " ", cell.fg, cell.bold) for cell in cells))
    return tuple(lines)


def is_empty(line: Line) -> bool:
    return all(character == " " for character, _, _ in line)


def without_repeats(frames: list[Frame]) -> list[Frame]:
    """Only pictures that differ from the one before, and none that lasts too long."""
    kept: list[Frame] = []
    shift = 0.0
    for frame in frames:
        if all(is_empty(line) for line in frame.lines) and not kept:
            shift = frame.at
            continue
        if kept and (frame.lines, frame.caption) == (kept[-1].lines, kept[-1].caption):
            continue
        at = frame.at - shift
        if kept and at - kept[-1].at > LONGEST_S:
            shift += at - kept[-1].at - LONGEST_S
            at = kept[-1].at + LONGEST_S
        kept.append(Frame(max(at, 0.0), frame.lines, frame.caption))
    return kept


def svg(frames: list[Frame], title: str) -> str:
    """The frames one below the other, and a window that jumps from each to the next. Without animation, the last."""
    rows = max(y + 1 for frame in frames for y, line in enumerate(frame.lines) if not is_empty(line))
    columns = len(frames[0].lines[0])
    width, height = round(columns * CELL_W + 2 * PAD), BAR + rows * CELL_H + PAD + CELL_H + 8
    total = frames[-1].at + LAST_S
    ids: dict[str, str] = {}
    body, steps = [], []
    for number, frame in enumerate(frames):
        top = number * height
        steps.append(f"{100 * frame.at / total:.2f}%{{transform:translateY({-top}px)}}")
        for y, line in enumerate(frame.lines[:rows]):
            if text := runs(line):
                name = ids.setdefault(text, f"l{len(ids)}")
                body.append(f'<use href="#{name}" y="{top + BAR + y * CELL_H}"/>')
        if frame.caption:
            body.append(f'<text class="c" x="{PAD}" y="{top + height - 12}">{html.escape(frame.caption)}</text>')
    lines = "".join(f'<g id="{name}">{text}</g>' for text, name in ids.items())
    dots = "".join(f'<circle cx="{18 + 16 * n}" cy="13" r="4.5" fill="{c}"/>' for n, c in enumerate(DOTS))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">'
        f"<title>{html.escape(title)}</title><style>"
        f"text{{font:12px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre;"
        f"fill:{COLOURS['default']}}}.b{{font-weight:700}}.t{{fill:#8b93a1}}.c{{fill:#e3b341;font-weight:700}}"
        f"#frames{{transform:translateY({-top}px);animation:play {total:.2f}s step-end infinite}}"
        f"@media(prefers-reduced-motion:reduce){{#frames{{animation:none}}}}@keyframes play{{{''.join(steps)}}}</style>"
        f"<defs>{lines}</defs>"
        f'<rect width="{width}" height="{height}" rx="8" fill="#161b22"/>{dots}'
        f'<text class="t" x="{width / 2}" y="17" text-anchor="middle">{html.escape(title)}</text>'
        f'<svg y="{BAR - 4}" width="{width}" height="{height - BAR + 4}" viewBox="0 {BAR - 4} {width} '
        f'{height - BAR + 4}"><g id="frames">{"".join(body)}</g></svg></svg>\n'
    )


DOTS = ("#ff5f57", "#febc2e", "#28c840")


def runs(line: Line) -> str:
    """The texts of a line: one for each stretch of one style, at its column."""
    parts, x = [], 0
    while x < len(line):
        _, colour, bold = line[x]
        end = x
        while end < len(line) and (line[end][1:] == (colour, bold) or line[end][0] == " "):
            end += 1
        text = "".join(character for character, _, _ in line[x:end])
        lead = len(text) - len(text.lstrip(" "))
        if text.strip(" "):
            text = text.strip(" ")
            style = "" if colour == "default" else f' style="fill:{COLOURS.get(colour, f"#{colour}")}"'
            bold_class = ' class="b"' if bold else ""
            at, length = PAD + (x + lead) * CELL_W, len(text) * CELL_W
            parts.append(
                f'<text x="{at:.1f}" y="12" textLength="{length:.1f}"{bold_class}{style}>{html.escape(text)}</text>'
            )
        x = end
    return "".join(parts)


@contextlib.contextmanager
def own_memory() -> Iterator[dict[str, str]]:
    """An environment with a shared-memory directory of its own."""
    with tempfile.TemporaryDirectory(prefix="recording-", dir="/dev/shm") as directory:
        yield {**os.environ, "ROLLWAY_SHM_DIR": directory, "PYTHONPATH": str(ROOT / "python")}


def rollway(*args: str) -> list[str]:
    return [sys.executable, "-m", "rollway.cli", *args]


def demo() -> None:
    with own_memory() as environment:
        frames = record(rollway("demo", "--seconds", "2"), 104, 26, environment, [])
    write("demo", svg(frames, "rollway demo"))


def top() -> None:
    with own_memory() as environment:
        run = subprocess.Popen(
            [sys.executable, ROOT / "scripts/sample_run.py"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        try:
            victim, *_ = json.loads(run.stdout.readline())
            command = rollway("top", "rollouts", "policy", "--interval", "0.5")
            events = [
                Event("producer", 4.0, f"$ kill -9 {victim}", lambda: os.kill(victim, signal.SIGKILL)),
                Event("dead", 3.0, f"{victim} died in the middle of its work. The others go on."),
                Event("dead", 4.0, ""),
            ]
            frames = record(command, 112, 20, environment, events)
        finally:
            run.communicate("")
    write("top", svg(frames, "rollway top, while a worker is killed"))


def write(name: str, text: str) -> None:
    ASSETS.mkdir(exist_ok=True)
    (ASSETS / f"{name}.svg").write_text(text)
    print(f"docs/assets/{name}.svg: {len(text) / 1000:.0f} KB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["demo", "top", []], help="by default both")
    for what in parser.parse_args().what or ["demo", "top"]:
        {"demo": demo, "top": top}[what]()


if __name__ == "__main__":
    main()
