"""The ratios that the project's bars ask for, between medians of one run: of the ring, and of TCP.

Works on the dict that is written as JSON, as `summary` does. A ratio that lacks one of its figures has no value.
"""

from __future__ import annotations

from summary import Ratio, Record, idle_percent, latency_us, producer_cpu_ns, throughput


def ring(record: Record) -> list[Ratio]:
    """Medians against medians of the same run, 1 producer."""

    def rate(contender: str, workload: str) -> float | None:
        return throughput(record, contender, workload, 1).median

    def cpu(contender: str, workload: str) -> float | None:
        return producer_cpu_ns(record, contender, workload, 1).median

    def p(contender: str, percentile: float) -> float | None:
        return latency_us(record, contender, percentile).median

    send, many = "rollway send", "rollway send_many"
    naive, iceoryx = "naive numpy ring, polling", "iceoryx2 (Python, u8 slice)"
    echo, queue = "id-echo TCP", "multiprocessing.Queue"
    share = _over(rate(send, "trajectory"), rate("memcpy (limit)", "trajectory"))
    by_cpu = _over(cpu("memcpy (limit)", "trajectory"), cpu(send, "trajectory"))
    found = [
        Ratio("trajectory, send, of memcpy", None if share is None else 100 * share, "%"),
        Ratio("trajectory, send, of memcpy, by producer CPU", None if by_cpu is None else 100 * by_cpu, "%"),
    ]
    for short, peer in (("naive", naive), ("iceoryx2", iceoryx), ("echo", echo), ("mp.Queue", queue)):
        found.append(
            Ratio(f"trajectory, send / {short}", _over(rate(send, "trajectory"), rate(peer, "trajectory")), "x")
        )
    for way in (send, many):
        for short, peer in (("naive", naive), ("echo", echo)):
            value = _over(rate(way, "transition"), rate(peer, "transition"))
            found.append(Ratio(f"transition, {way.split()[1]} / {short}", value, "x"))
    return [
        *found,
        Ratio("transition, wall time per send (1 / throughput)", _over(1e9, rate(send, "transition")), "ns"),
        Ratio("transition, producer CPU per send", cpu(send, "transition"), "ns"),
        Ratio("latency, rollway p50 / iceoryx2 event p50", _over(p(send, 50), p("iceoryx2, event", 50)), "x"),
        Ratio("latency, rollway p99 / mp.Queue p99", _over(p(send, 99), p(queue, 99)), "x"),
        Ratio("latency, rollway p50 / bare futex p50", _over(p(send, 50), p("bare futex in C (floor)", 50)), "x"),
        Ratio("idle, CPU of the waiting consumer", idle_percent(record).median, "% of a core"),
    ]


def net(record: Record) -> list[Ratio]:
    """Medians against medians of the same run, 1 and 4 clients; a name says what its bar is, where there is one."""
    send, many, echo = "rollway TCP send", "rollway TCP send_many", "id-echo TCP"
    raw, gathered = "raw loopback socket (limit)", "raw loopback, 64 KiB writes (limit)"

    def times(workload: str, clients: int, ours: str, theirs: str) -> float | None:
        found = [throughput(record, contender, workload, clients).median for contender in (ours, theirs)]
        return _over(*found)

    def per_cent(workload: str, clients: int, ours: str, theirs: str) -> float | None:
        share = times(workload, clients, ours, theirs)
        return None if share is None else 100 * share

    def p(contender: str, percentile: float) -> float | None:
        return latency_us(record, contender, percentile).median

    one, four = "1 client", "4 clients"
    return [
        Ratio(f"trajectory, send / echo, {one} (bar: 3)", times("trajectory", 1, send, echo), "x"),
        Ratio(f"trajectory, send / echo, {four} (bar: 2)", times("trajectory", 4, send, echo), "x"),
        Ratio(f"trajectory, send, of raw loopback, {one} (bar: 70 %)", per_cent("trajectory", 1, send, raw), "%"),
        Ratio(f"trajectory, send, of raw loopback, {four}", per_cent("trajectory", 4, send, raw), "%"),
        Ratio(f"trajectory, send_many, of raw loopback, {one}", per_cent("trajectory", 1, many, raw), "%"),
        Ratio(f"trajectory, send_many, of raw loopback, {four}", per_cent("trajectory", 4, many, raw), "%"),
        Ratio(f"transition, send / echo, {one} (bar: 10)", times("transition", 1, send, echo), "x"),
        Ratio(f"transition, send / echo, {four}", times("transition", 4, send, echo), "x"),
        Ratio(f"transition, send_many / echo, {one} (bar: 50)", times("transition", 1, many, echo), "x"),
        Ratio(f"transition, send_many / echo, {four}", times("transition", 4, many, echo), "x"),
        Ratio(f"transition, send_many, of raw 64 KiB writes, {one}", per_cent("transition", 1, many, gathered), "%"),
        Ratio(f"transition, send_many, of raw 64 KiB writes, {four}", per_cent("transition", 4, many, gathered), "%"),
        Ratio(f"rollout, send / echo, {one}", times("rollout", 1, send, echo), "x"),
        Ratio(f"rollout, send / echo, {four}", times("rollout", 4, send, echo), "x"),
        Ratio(f"rollout, send, of raw loopback, {one}", per_cent("rollout", 1, send, raw), "%"),
        Ratio(f"rollout, send, of raw loopback, {four}", per_cent("rollout", 4, send, raw), "%"),
        Ratio("latency, rollway p50 / echo p50 (bar: 0.5)", _over(p(send, 50), p(echo, 50)), "x"),
        Ratio("latency, rollway p99 / echo p99", _over(p(send, 99), p(echo, 99)), "x"),
        Ratio("latency, rollway p50 / raw loopback p50", _over(p(send, 50), p(raw, 50)), "x"),
        Ratio("idle, CPU of the waiting learner, 4 silent clients", idle_percent(record).median, "% of a core"),
    ]


def _over(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b
