"""Metrics of the segments of this machine, read from outside: no code in the run. Needs the extra ``metrics``.

`rollway metrics` serves them. `rollway.inspect` looks, with read-only mappings that last as long as one look.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rollway.errors import RollwayError, SegmentNotFound, SegmentNotOurs, need_packages
from rollway.inspect import Inspection, Look, Participant
from rollway.machine import segments
from rollway.metrics.families import Families, openmetrics_text
from rollway.metrics.numbers import of_segments

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_ROLES = {
    "ring": ("learner", "producer"),
    "records": ("learner", "producer"),
    "replay": ("learner", "producer"),
    "weights": ("reader", "writer"),
    "vector env": ("caller", "worker"),
}
"""These are counted also where there is none, so that an alert can ask for 0."""
_STATES = ("alive", "stopped", "dead")
_IN_SECONDS = {"published_ago_ns": "published_age_seconds"}

_Key = tuple[str, ...]


class SegmentCollector:
    """Gives the numbers of segments to prometheus-client: ``REGISTRY.register(SegmentCollector())``.

    Each `collect` looks at the segments anew. A segment that vanishes meanwhile is left out. One that cannot be looked
    at has only ``rollway_segment_readable 0``. Nothing waits for the processes of a run. Threads can share it.

    Args:
        names: Which segments; all of this user if there are none.
    """

    def __init__(self, *names: str) -> None:
        need_packages("rollway.metrics", "metrics", "prometheus_client")
        self._names = names
        self._lock = threading.Lock()
        self._last: dict[_Key, float] = {}

    def collect(self) -> Iterator[Metric]:
        """Looks at each segment once."""
        with self._lock:
            scrape = _Scrape(self._last)
            begun = time.perf_counter()
            for name, kind, born_ns in self._found():
                scrape.add_segment(name, kind, born_ns)
            scrape.families.add("look_seconds", time.perf_counter() - begun, {})
            self._last = scrape.counters
        yield from scrape.families

    def _found(self) -> list[tuple[str, str, int]]:
        """Name, kind and time of creation of each segment."""
        found = {info.name: info for info in segments()}
        if not self._names:
            return [(info.name, info.kind, info.created_unix_ns) for info in found.values()]
        there = [(name, found.get(name)) for name in dict.fromkeys(self._names)]
        return [(name, info.kind, info.created_unix_ns) if info else (name, "unknown", 0) for name, info in there]


def segments_openmetrics(*names: str) -> str:
    """The numbers of segments as OpenMetrics text, of the type `CONTENT_TYPE`; of all of this user if no name is given.

    >>> import numpy as np, rollway
    >>> with rollway.Server({"x": np.zeros(1)}, batch_size=2, transport=rollway.ShmTransport("seen")) as server:
    ...     text = segments_openmetrics("seen")
    >>> [line for line in text.splitlines() if line.startswith("rollway_batch_size")]
    ['rollway_batch_size{kind="ring",segment="seen"} 2.0']
    """
    return openmetrics_text(SegmentCollector(*names))


class _Scrape:
    """One look at all segments.

    A look is not one instant, so a sum may be a little smaller than the one before. Prometheus would take that for a
    restart from 0, and count the whole of it again. So a counter keeps its last value until it is passed.
    """

    def __init__(self, last: Mapping[_Key, float]) -> None:
        self.families = Families(of_segments(), "segment")
        self.counters: dict[_Key, float] = {}
        self._last = last

    def add_segment(self, name: str, kind: str, born_ns: int) -> None:
        try:
            look = Inspection(name).look()
        except SegmentNotOurs:
            return
        except RollwayError as error:
            was_listed = born_ns != 0  # the others were asked for by name
            if not (was_listed and isinstance(error, SegmentNotFound)):
                shown = "".join(c if c.isprintable() else "?" for c in name)  # no name that we gave
                self.families.add("segment_readable", 0, {"segment": shown, "kind": kind})
            return
        if look.unlinked:
            return
        labels = {"segment": look.name, "kind": look.kind}
        born = str(born_ns)
        for key, value in _numbers(look).items():
            self._add(key, value, labels, born)
        for key, snapshot in look.histograms.items():
            self.families.add_histogram(key, snapshot, labels)
        for (role, state), count in _counted(look).items():
            self._add("participants", count, {**labels, "role": role, "state": state}, born)
        for one in look.participants:
            self._add_participant(look, one, labels)

    def _add_participant(self, look: Look, one: Participant, labels: Mapping[str, str]) -> None:
        labels = {**labels, "role": one.role, "pid": str(one.pid), "seat": str(one.seat)}
        born = str(one.joined_unix_ns)
        for key, value in _of_participant(look, one).items():
            self._add(f"participant_{key}", value, labels, born)
        if one.state == "dead":
            return
        for activity in ("wait_data", "wait_room", "hold", "work"):
            seconds = getattr(one, f"{activity}_ns") / 1e9
            self._add("participant_seconds", seconds, {**labels, "activity": activity}, born)
        now = {**labels, "activity": one.activity}
        self._add("participant_activity_seconds", one.activity_ns / 1e9, now, born)

    def _add(self, key: str, value: float, labels: Mapping[str, str], born: str) -> None:
        if self.families.number(key).only_grows:
            identity = (key, born, *labels.values())
            value = max(value, self._last.get(identity, 0.0))
            self.counters[identity] = value
        self.families.add(key, value, labels)


def _numbers(look: Look) -> dict[str, float]:
    numbers: dict[str, float] = {
        "segment_readable": 1,
        "segment_closed": int(look.closed),
        "used_bytes": look.used_bytes,
    }
    for key, value in look.numbers.items():
        seconds = _IN_SECONDS.get(key)
        numbers[seconds or key] = value / 1e9 if seconds else value
    room = _room(look.kind, look.numbers)
    if room is not None:
        taken, all_of = room
        numbers["fill_ratio"] = min(taken / all_of, 1.0) if all_of else 0.0
    commits = [one.last_commit_ns for one in look.participants if one.last_commit_ns is not None]
    if commits:
        numbers["last_commit_age_seconds"] = min(commits) / 1e9
    if look.kind in ("ring", "records"):
        numbers["producers_waiting"] = sum(one.activity == "wait_room" for one in look.givers)
        numbers["learners_waiting"] = sum(one.activity == "wait_data" for one in look.takers)
    return numbers


def _room(kind: str, numbers: Mapping[str, int]) -> tuple[int, int] | None:
    """How much is taken, and of how much."""
    if kind == "ring":
        taken = numbers["ready_samples"] + numbers["held_samples"] + numbers["claimed_slots"]
        return taken, numbers["batch_size"] * numbers["num_buffers"]
    if kind == "records":
        return numbers["ready_bytes"] + numbers["taken_bytes"], numbers["lanes_taken"] * numbers["lane_bytes"]
    return (numbers["rows"], numbers["capacity"]) if kind == "replay" else None


def _counted(look: Look) -> Counter[tuple[str, str]]:
    """How many participants there are, by role and state."""
    roles = _ROLES.get(look.kind, ())
    if any(one.role == "forwarder" for one in look.participants):
        roles = ("forwarder", "producer")
    counted = Counter({(role, state): 0 for role in roles for state in _STATES})
    for one in look.participants:
        counted[one.role, "dead" if one.state == "dead" else "stopped" if one.is_stopped else "alive"] += 1
    return counted


def _of_participant(look: Look, one: Participant) -> dict[str, float]:
    numbers: dict[str, float] = {
        "alive": int(one.state != "dead"),
        "stopped": int(one.is_stopped),
        "joined_timestamp_seconds": one.joined_unix_ns / 1e9,
    }
    if one.gives:
        numbers |= {"committed": one.committed, "writing": one.writing, "copy_seconds": one.copy_ns / 1e9}
        if one.last_commit_ns is not None:
            numbers["last_commit_age_seconds"] = one.last_commit_ns / 1e9
        if look.kind == "records":
            numbers["unread"] = one.unread
    else:
        numbers["holding"] = one.holding
        if look.kind == "ring":
            numbers["oldest_held_seconds"] = (one.oldest_held_ns or 0) / 1e9
    if one.role == "network":
        numbers |= {"remote_connected": one.remote_connected, "remote_lost": one.remote_lost}
    latest = look.numbers.get("published_version" if look.kind == "records" else "version")
    if one.version or one.role == "reader":
        numbers["version"] = one.version
    if latest is not None and (one.role == "reader" or (look.kind == "records" and one.version)):
        numbers["versions_behind"] = max(latest - one.version, 0)
    return numbers
