"""WriterLog: the numbers of a server for TensorBoard or Weights & Biases, written from a thread while a block runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

from rollway._core import HistSnapshot
from rollway.errors import InvalidArgument
from rollway.metrics.numbers import GROUPS

_NUMBERS = [item for group in GROUPS.values() for item in group.items()]
# Some keys are totals in one place and sizes in another, such as `bytes`.
_GROWING = {key for key, number in _NUMBERS if number.only_grows} - {
    key for key, number in _NUMBERS if not number.only_grows
}
_QUANTILES = ("p50", "p99")


class HasStats(Protocol):
    """A server, a client, weights or a buffer: what has `stats`, and perhaps `histograms`."""

    def stats(self) -> Mapping[str, int]:
        """Plain numbers."""
        ...


def log_to(
    writer: Any,
    source: HasStats,
    every_s: float = 10.0,
    *,
    prefix: str = "rollway",
    step: Callable[[], int] | None = None,
) -> WriterLog:
    """Writes the numbers of a server to TensorBoard or Weights & Biases, while a ``with`` block runs.

    Args:
        writer: A writer of TensorBoard (``torch.utils.tensorboard.SummaryWriter``, ``tensorboard.summary.Writer``,
            ``tensorboardX``), or a run of Weights & Biases. It stays yours to close.
        source: A `Server`, or anything else with `stats`: clients, weights, buffers.
        every_s: How often.
        prefix: Each name is ``prefix/key``.
        step: Gives the step of each write, for example your iteration. Left out, TensorBoard gets whole seconds since
            the beginning; Weights & Biases counts its own steps, and plots over ``prefix/seconds``.

    >>> import tempfile, numpy as np, rollway
    >>> class Prints:
    ...     def add_scalar(self, name, value, step):
    ...         if name == "rollway/ready_samples":
    ...             print(name, value, step)
    >>> with rollway.Server({"x": np.zeros(1)}, batch_size=2) as server, log_to(Prints(), server):
    ...     _ = server.submit({"x": np.ones(1)})
    rollway/ready_samples 1.0 0
    """
    return WriterLog(_sink(writer, prefix), source, every_s, prefix, step)


class WriterLog:
    """Writes every ``every_s`` while its ``with`` block runs, and once more when the block ends.

    What the writer raises in between is raised by the end of the block, and nothing more is written.
    """

    def __init__(
        self,
        sink: Callable[[Mapping[str, float], float, int | None], None],
        source: HasStats,
        every_s: float,
        prefix: str,
        step: Callable[[], int] | None,
    ) -> None:
        if not 0 < every_s <= threading.TIMEOUT_MAX:
            raise InvalidArgument(f"every_s = {every_s} is out of range: more than 0")
        self._sink, self._source, self._every_s, self._prefix, self._step = sink, source, every_s, prefix, step
        self._begun = time.monotonic()
        self._last: tuple[float, Mapping[str, int]] | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="rollway-log", daemon=True)

    def write(self) -> None:
        """Writes now."""
        with self._lock:
            now = time.monotonic()
            stats = dict(self._source.stats())
            numbers = _numbers(stats, self._last and (now - self._last[0], self._last[1]))
            numbers |= _quantiles(getattr(self._source, "histograms", dict)())
            self._last = (now, stats)
            named = {f"{self._prefix}/{key}": value for key, value in numbers.items()}
            self._sink(named, now - self._begun, None if self._step is None else self._step())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        failure = self._failure
        if failure is None:
            try:
                self.write()
            except Exception as error:  # noqa: BLE001  # raised below, unless the block has a failure of its own
                failure = error
        if failure is not None and kind is None:
            raise failure

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            try:
                self.write()
            except Exception as error:  # noqa: BLE001  # the end of the block raises it
                self._failure = error
                return


def _numbers(stats: Mapping[str, int], last: tuple[float, Mapping[str, int]] | None) -> dict[str, float]:
    """The numbers, how fast they grew, and of times which share of the interval they were.

    >>> before = {"added": 10, "learners_wait_ns": 3_000_000_000}
    >>> _numbers({"added": 30, "learners_wait_ns": 4_000_000_000}, (2.0, before))
    {'added': 30.0, 'added_per_s': 10.0, 'learners_wait_share': 0.5}
    """
    numbers: dict[str, float] = {}
    for key, value in stats.items():
        is_time = key.endswith("_ns")
        if not is_time:
            numbers[key] = float(value)
        if last is None or last[0] <= 0:
            continue
        per_s = max(value - last[1].get(key, 0), 0) / last[0]
        if is_time:
            numbers[f"{key.removesuffix('_ns')}_share"] = per_s / 1e9
        elif key in _GROWING:
            numbers[f"{key}_per_s"] = per_s
    return numbers


def _quantiles(histograms: Mapping[str, HistSnapshot]) -> dict[str, float]:
    return {
        f"{key}_{quantile}_s": getattr(snapshot, f"{quantile}_ns") / 1e9
        for key, snapshot in histograms.items()
        if snapshot.count
        for quantile in _QUANTILES
    }


def _sink(writer: Any, prefix: str) -> Callable[[Mapping[str, float], float, int | None], None]:
    """How a writer takes numbers, the seconds since the beginning, and a step."""
    if hasattr(writer, "add_scalar"):

        def to_tensorboard(numbers: Mapping[str, float], seconds: float, step: int | None) -> None:
            for name, value in numbers.items():
                writer.add_scalar(name, value, int(seconds) if step is None else step)

        return to_tensorboard
    if not hasattr(writer, "log"):
        raise InvalidArgument(
            f"writer = {writer!r} has neither add_scalar nor log: give a TensorBoard writer, or a run of wandb.init()"
        )
    axis = f"{prefix}/seconds"
    if hasattr(writer, "define_metric"):
        writer.define_metric(f"{prefix}/*", step_metric=axis)

    def to_wandb(numbers: Mapping[str, float], seconds: float, step: int | None) -> None:
        writer.log({**numbers, axis: seconds}, **({} if step is None else {"step": step}))

    return to_wandb
