"""Why: who is the bottleneck of a segment, from two looks at it. The verdict and its evidence, in three lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollway.inspect.interval import UNITS, Interval, watch
from rollway.inspect.look import Look, Participant

_BLOCKED = 0.25
"""A participant that waits for a larger share of its time is held up."""
_ACTIVITIES = {
    "wait_data": "waiting for data",
    "wait_room": "waiting for room",
    "hold": "holding what it took",
    "work": "at other work",
}
_SHOWN_SHARE = 0.005
_SHOWN = 4
"""So many processes are named at most."""


@dataclass(frozen=True)
class Verdict:
    """What holds a run up."""

    culprit: str
    """``learner``, ``forwarder``, ``producers``, ``writer``, ``reader``, ``worker``, ``caller``, ``nobody`` (all is
    well), ``no process``, or ``unreadable``."""
    pids: tuple[int, ...]
    """The processes that hold the others up, where single ones can be named."""
    lines: tuple[str, ...]
    """The verdict, the side that takes, the side that brings."""

    def __str__(self) -> str:
        return "\n".join(self.lines)


def why(name: str, seconds: float = 2.0) -> Verdict:
    """Looks at a segment twice, and says who is the bottleneck.

    >>> import numpy as np, rollway
    >>> with rollway.Server({"x": np.zeros(1)}, batch_size=2, transport=rollway.ShmTransport()) as server:
    ...     why(server.name, seconds=0.01).culprit
    'nobody'
    """
    return judge(watch(name, seconds))


def judge(interval: Interval) -> Verdict:
    """The verdict on an interval."""
    culprit, pids, first = _judge(interval)
    return Verdict(culprit, pids, (first, _takers(interval), _givers(interval)))


_Judged = tuple[str, tuple[int, ...], str]


def _judge(interval: Interval) -> _Judged:
    look = interval.after
    if look.kind == "tables":
        return (
            "nobody",
            (),
            f"'{look.name}' holds replay tables: `ReplayTables.info()` says what their limiters wait for",
        )
    if look.kind in ("block", "unknown"):
        return "nobody", (), f"'{look.name}' is a {look.kind}: it has no protocol, so nobody waits in it"
    if not look.givers and not look.takers:
        return "no process", (), _nobody_there(look)
    if look.kind == "weights":
        return _weights(interval)
    return _vector_env(interval) if look.kind == "vector env" else _flow(interval)


def _flow(interval: Interval) -> _Judged:
    """Of a ring, of records or of a table."""
    look, taker = interval.after, _taker(interval.after)
    units = UNITS[look.kind]
    dead_takers = [one for one in look.dead if not one.gives]
    stopped = [one for one in look.takers if one.is_stopped]
    if not look.takers:
        died = f"the {taker} died without closing ({_pids(dead_takers)})" if dead_takers else "no learner is attached"
        waits = f": {_blocked_text(interval)}" if _blocked(interval) else ""
        return taker, tuple(one.pid for one in dead_takers), f"{died}{waits}"
    if stopped and len(stopped) == len(look.takers):
        text = f"the {taker} is stopped ({_pids(stopped)}: {stopped[0].process}{_for(stopped[0])})"
        return taker, _ids(stopped), f"{text}; {_holds(look)}"
    stuck = _stuck_writers(interval)
    starved = [one for one in look.takers if interval.shares(one).wait_data >= _BLOCKED]
    if stuck and starved:
        named = ", ".join(_stuck_text(one, units) for one in stuck[:_SHOWN])
        who = "a producer is" if len(stuck) == 1 else f"{len(stuck)} producers are"
        return "producers", _ids(stuck), f"{who} stuck in the middle of a write: {named}{_more(len(stuck))}"
    if _blocked(interval):
        return taker, _ids(look.takers), f"the {taker} is the bottleneck: {_blocked_text(interval)}; {_holds(look)}"
    if interval.dropped_rate > 0:
        dropped = f"{_number(interval.dropped_rate)} {units}/s are dropped because there is no room"
        return taker, _ids(look.takers), f"the {taker} is the bottleneck: {dropped}; {_holds(look)}"
    if starved:
        share = max(interval.shares(one).wait_data for one in starved)
        waited = f"the {taker} waited for data for {share:.0%} of the last {_seconds(interval.seconds)}"
        return _starved(interval, waited)
    return "nobody", (), _all_well(interval)


def _all_well(interval: Interval) -> str:
    look = interval.after
    room = max((interval.shares(one).wait_room for one in look.givers), default=0.0)
    data = max((interval.shares(one).wait_data for one in look.takers), default=0.0)
    if max(room, data) < _SHOWN_SHARE:
        return f"nobody holds the others up: no producer waits for room, and no {_taker(look)} waits for data"
    waits = f"producers wait for room for {room:.0%} of their time, and {_taker(look)}s for data for {data:.0%}"
    return f"nobody holds the others up much: {waits}"


def _starved(interval: Interval, waited: str) -> _Judged:
    """The learner waits for data: why does none come?"""
    look = interval.after
    began = min(one.joined_unix_ns for one in look.takers)
    dead = [one for one in look.dead if one.gives and one.joined_unix_ns >= began]  # the others are of an earlier run
    stopped = [one for one in look.givers if one.is_stopped]
    if not look.givers:
        gone = f"every producer died without closing ({_pids(dead)})" if dead else "no producer is attached"
        return "producers", _ids(dead), f"{gone}: {waited}"
    if stopped and len(stopped) == len(look.givers):
        text = f"every producer is stopped ({_pids(stopped)}: {stopped[0].process})"
        return "producers", _ids(stopped), f"{text}: {waited}"
    remote, also = _remotes(look), ""
    if stopped:
        those = f"{len(stopped)} of {len(look.givers)} producers {'is' if len(stopped) == 1 else 'are'} stopped"
        also += f"; {those} ({_pids(stopped)}{_since_commit(stopped)})"
    if dead:
        also += f"; {len(dead)} died without closing ({_pids(dead)}{_since_commit(dead)})"
    if remote is not None and remote.lost:
        also += f"; {remote}"
    local = [one for one in look.givers if one.role == "producer"]
    if remote is not None and not local and not remote.connected:
        return "producers", (), f"no remote worker is connected: {waited}{also}"
    if all(interval.rate_of(one) == 0 for one in look.givers):
        nothing = f"the producers are the bottleneck: none of them committed anything, and {waited}{also}"
        return "producers", _ids([*local, *dead]), nothing
    return "producers", _ids([*stopped, *dead]), f"the producers are the bottleneck: {waited}{also}"


@dataclass(frozen=True)
class _Remotes:
    """The workers on other hosts."""

    connected: int
    lost: int
    address: str | None
    """Of the last one that was lost."""
    ago_ns: int

    def __str__(self) -> str:
        connected = f"{_count(self.connected, 'remote worker')} connected"
        if not self.lost:
            return connected
        last = f"the last one, from {self.address}," if self.address else "the last one"
        return f"{connected}, {self.lost:,} lost without a goodbye: {last} {_seconds(self.ago_ns / 1e9)} ago"


def _remotes(look: Look) -> _Remotes | None:
    network = [one for one in look.givers if one.role == "network"]
    if not network:
        return None
    last = min(network, key=lambda one: one.remote_lost_ns if one.remote_lost_ns is not None else 1 << 63)
    connected, lost = sum(one.remote_connected for one in network), sum(one.remote_lost for one in network)
    return _Remotes(connected, lost, last.remote_lost_address, last.remote_lost_ns or 0)


def _weights(interval: Interval) -> _Judged:
    look = interval.after
    version, waiting = look.numbers["version"], [one for one in look.takers if one.activity == "wait_data"]
    ago = look.numbers.get("published_ago_ns")
    published = (
        f"version {version} was published {_seconds(ago / 1e9)} ago" if ago is not None else "nothing is published"
    )
    stopped = [one for one in look.givers if one.is_stopped]
    if waiting and stopped:
        return (
            "writer",
            _ids(stopped),
            f"the writer is stopped ({_pids(stopped)}): {len(waiting)} readers wait; {published}",
        )
    if waiting:
        longest = max(one.activity_ns for one in waiting) / 1e9
        wait = "reader waits" if len(waiting) == 1 else "readers wait"
        who = f"{len(waiting)} {wait} for a version, the longest for {_seconds(longest)}"
        return "writer", _ids(look.givers), f"{who}; {published}"
    writers = _ids(look.givers)  # the process of a node's copy also has a handle with which it does not read
    unused = [one for one in look.takers if one.pid in writers and one.version == one.wait_data_ns == 0]
    behind = [one for one in look.takers if one.version < version and one not in unused]
    if behind:
        most = max(behind, key=lambda one: version - one.version)
        lag = f"{len(behind)} of {len(look.takers)} readers are behind"
        return "reader", _ids(behind), f"{lag}, pid {most.pid} by {version - most.version} versions; {published}"
    return "nobody", (), f"no reader waits or is behind; {published}"


def _vector_env(interval: Interval) -> _Judged:
    look = interval.after
    late = [one for one in look.participants if one.gives and one.writing]
    callers = [one for one in look.takers if one.activity == "wait_data"]
    if late and callers:
        caller = callers[0]
        named = ", ".join(
            f"pid {one.pid}{_stop_text(one)} with {_count(one.writing, 'request')}" for one in late[:_SHOWN]
        )
        waits = f"the caller (pid {caller.pid}) has waited for {_seconds(caller.activity_ns / 1e9)}"
        share = interval.shares(caller).wait_data
        return "worker", _ids(late), f"{waits} ({share:.0%} of the last {_seconds(interval.seconds)}) for {named}"
    stopped = [one for one in look.takers if one.is_stopped]
    if stopped:
        return "caller", _ids(stopped), f"the caller is stopped ({_pids(stopped)}): no environment is asked"
    idle = [interval.shares(one).wait_data for one in look.givers]
    share = sum(idle) / len(idle) if idle else 0.0
    if share >= _BLOCKED:
        return (
            "caller",
            _ids(look.takers),
            f"the workers waited for requests for {share:.0%} of the last {_seconds(interval.seconds)}",
        )
    return "nobody", (), "no request is late, and the workers have enough to do"


def _takers(interval: Interval) -> str:
    look = interval.after
    name = _taker(look)
    if not look.takers:
        return f"{name}: none"
    parts = []
    for one in look.takers[:_SHOWN]:
        shares = interval.shares(one)
        spent = _spent([("waits for data", shares.wait_data), ("holds", shares.hold), ("other work", shares.work)])
        held = f", {_count(one.holding, _held_unit(look.kind))} in hand" if one.holding else ""
        has = f", has version {one.version}" if look.kind == "weights" else ""
        parts.append(f"pid {one.pid}{_stop_text(one)}: {spent}{held}{has}")
    rate = f"; takes {_number(interval.taken_rate)} {UNITS[look.kind]}/s" if interval.taken_rate is not None else ""
    return f"{name}: {'; '.join(parts)}{_more(len(look.takers))}{rate}"


def _taker(look: Look) -> str:
    """What those are called who take."""
    if any(one.role == "forwarder" for one in look.participants):
        return "forwarder"
    return {"weights": "reader", "vector env": "caller"}.get(look.kind, "learner")


def _givers(interval: Interval) -> str:
    look = interval.after
    name = {"weights": "writer", "vector env": "workers"}.get(look.kind, "producers")
    dead = [one for one in look.dead if one.gives]
    died = f"; {len(dead)} died ({_pids(dead)})" if dead else ""
    if not look.givers:
        return f"{name}: none{died}"
    shares = [interval.shares(one) for one in look.givers]
    average = [
        ("wait for room", sum(one.wait_room for one in shares) / len(shares)),
        ("wait for requests", sum(one.wait_data for one in shares) / len(shares)),
        ("copy", sum(one.copy for one in shares) / len(shares)),
        ("other work", sum(one.work - one.copy for one in shares) / len(shares)),
    ]
    rate = f"{_number(interval.committed_rate)} {UNITS.get(look.kind, 'commits')}/s"
    stopped = [one for one in look.givers if one.is_stopped]
    also = f"; {len(stopped)} stopped ({_pids(stopped)})" if stopped else ""
    remote = _remotes(look)
    remotes = f"; {remote}" if remote is not None else ""
    return f"{name}: {len(look.givers)} alive, {rate}: {_spent(average)}{also}{died}{remotes}"


def _nobody_there(look: Look) -> str:
    ready = look.numbers.get("ready_samples", look.numbers.get("ready_records", look.numbers.get("rows", 0)))
    died = f", {len(look.dead)} died without closing ({_pids(look.dead)})" if look.dead else ""
    unit = UNITS.get(look.kind)
    left = f"; {ready:,} {unit} are left in it" if unit and look.kind in ("ring", "records", "replay") else ""
    return f"no process is attached to '{look.name}'{died}{left}"


def _blocked(interval: Interval) -> list[Participant]:
    """Producers that wait for room. One that is stopped would not go on if there were some."""
    givers = interval.after.givers
    return [one for one in givers if interval.shares(one).wait_room >= _BLOCKED and not one.is_stopped]


def _blocked_text(interval: Interval) -> str:
    blocked, all_of = _blocked(interval), interval.after.givers
    share = sum(interval.shares(one).wait_room for one in blocked) / len(blocked)
    last = _seconds(interval.seconds)
    return f"{len(blocked)} of {len(all_of)} producers blocked for {share:.0%} of the last {last}"


def _stuck_writers(interval: Interval) -> list[Participant]:
    """Producers that had something reserved in both looks, and committed nothing in between."""
    stuck = []
    for one in interval.after.givers:
        old = interval.earlier(one)
        if (
            old is not None
            and old.writing
            and one.writing
            and old.committed == one.committed
            and one.activity == "work"
        ):
            stuck.append(one)
    return stuck


def _stuck_text(one: Participant, units: str) -> str:
    if one.last_commit_ns is not None:
        since = f"no commit for {_seconds(one.last_commit_ns / 1e9)}"
    else:
        since = f"no commit since it attached {_seconds(one.wall_ns / 1e9)} ago"
    return f"pid {one.pid}{_stop_text(one)} has {_count(one.writing, units.removesuffix('s'))} reserved, {since}"


def _since_commit(them: Sequence[Participant]) -> str:
    commits = [one.last_commit_ns for one in them if one.last_commit_ns is not None]
    return f", no commit for {_seconds(max(commits) / 1e9)}" if commits else ""


def _holds(look: Look) -> str:
    """What the learners have in hand."""
    held = sum(one.holding for one in look.takers)
    sent = ", until its learner has acknowledged them" if held and _taker(look) == "forwarder" else ""
    if look.kind == "ring":
        oldest = max((one.oldest_held_ns or 0 for one in look.takers), default=0) / 1e9
        since = f", the oldest for {_seconds(oldest)}" if held else ""
        return f"it holds {held} of {look.numbers['num_buffers']} batches{since}{sent}"
    if look.kind == "records":
        return f"it holds {held:,} records{sent}, and {look.numbers['ready_records']:,} wait to be read"
    return f"{look.numbers['rows']:,} of {look.numbers['capacity']:,} rows are whole"


def _for(one: Participant) -> str:
    return f", {_ACTIVITIES[one.activity]} for {_seconds(one.activity_ns / 1e9)}"


def _stop_text(one: Participant) -> str:
    return f" ({one.process})" if one.is_stopped else ""


def _held_unit(kind: str) -> str:
    return {"ring": "batch", "records": "record", "weights": "buffer"}.get(kind, "item")


def _spent(parts: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {share:.0%}" for name, share in parts if share >= _SHOWN_SHARE) or "no time yet"


def _ids(them: Sequence[Participant]) -> tuple[int, ...]:
    return tuple(one.pid for one in them)


def _pids(them: Sequence[Participant]) -> str:
    pids = list(dict.fromkeys(one.pid for one in them))
    shown = ", ".join(str(pid) for pid in pids[:_SHOWN])
    return f"pid {shown}{_more(len(pids))}"


def _more(count: int) -> str:
    return f" and {count - _SHOWN} more" if count > _SHOWN else ""


def _count(number: int, noun: str) -> str:
    plural = {"batch": "batches"}.get(noun, f"{noun}s")
    return f"{number:,} {noun if number == 1 else plural}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 100 else f"{value:,.0f} s"
