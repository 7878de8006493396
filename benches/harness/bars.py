"""The ratios that the project's bars ask for, between medians of one run: of the ring, of TCP and of records.

Works on the dict that is written as JSON, as `summary` does. A ratio that lacks one of its figures has no value.
"""

from __future__ import annotations

from harness import assembly, forms, memory
from harness.summary import Ratio, Record, extra, idle_percent, latency_us, losses, producer_cpu_ns, throughput


def ring(record: Record) -> list[Ratio]:
    """Medians against medians of the same run, 1 and 4 producers; a name says what its bar is, where there is one.

    The limit is what one process can copy, and what as many processes as there are producers can.
    """
    send, many, limit = "rollway send", "rollway send_many", "memcpy (limit)"
    peers = {
        "naive": ("naive numpy ring, polling", 2),
        "iceoryx2": ("iceoryx2 (Python, u8 slice)", 4),
        "echo": ("id-echo TCP", 10),
        "mp.Queue": ("multiprocessing.Queue", 20),
    }
    found = []

    def rate(contender: str, workload: str, producers: int) -> float | None:
        return throughput(record, contender, workload, producers).median

    def cpu(contender: str, workload: str) -> float | None:
        return producer_cpu_ns(record, contender, workload, 1).median

    def p(contender: str, percentile: float) -> float | None:
        return latency_us(record, contender, percentile).median

    for producers, words in ((1, "1 producer"), (4, "4 producers")):
        ours = rate(send, "trajectory", producers)
        for copying in sorted({1, producers}):
            by = "one process" if copying == 1 else f"{copying} processes"
            bar = " (bar: 80 %)" if copying == 1 else ""
            share = _per_cent(ours, rate(limit, "trajectory", copying))
            found.append(Ratio(f"trajectory, {words}, send, of memcpy by {by}{bar}", share, "%"))
        for short, (peer, bar_x) in peers.items():
            value = _over(ours, rate(peer, "trajectory", producers))
            found.append(Ratio(f"trajectory, {words}, send / {short} (bar: {bar_x})", value, "x"))
        for way, short, bar_x in ((send, "naive", 5), (send, "echo", 50), (many, "naive", 40), (many, "echo", 50)):
            value = _over(rate(way, "transition", producers), rate(peers[short][0], "transition", producers))
            found.append(Ratio(f"transition, {words}, {way.split()[1]} / {short} (bar: {bar_x})", value, "x"))
    queue, iceoryx = p(peers["mp.Queue"][0], 99), p("iceoryx2, event", 50)
    by_cpu = _per_cent(cpu(limit, "trajectory"), cpu(send, "trajectory"))
    return [
        *found,
        Ratio("trajectory, 1 producer, send, of memcpy, by producer CPU", by_cpu, "%"),
        Ratio("transition, wall time per send (1 / throughput)", _over(1e9, rate(send, "transition", 1)), "ns"),
        Ratio("transition, producer CPU per send", cpu(send, "transition"), "ns"),
        Ratio("latency, rollway p50 / iceoryx2 event p50 (bar: 0.5)", _over(p(send, 50), iceoryx), "x"),
        Ratio("latency, rollway p99 / mp.Queue p99 (bar: 0.33)", _over(p(send, 99), queue), "x"),
        Ratio("latency, rollway p50 / bare futex p50", _over(p(send, 50), p("bare futex in C (floor)", 50)), "x"),
        Ratio("idle, CPU of the waiting consumer (bar: 1 %)", idle_percent(record).median, "% of a core"),
        *_forms(record, "env_step", send, {name: f"{send}, {name}" for name in forms.STEPS if name != forms.PLAIN}),
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
        *_forms(record, "env_step", send, {name: f"{send}, {name}" for name in forms.STEPS if name != forms.PLAIN}),
    ]


def records(record: Record) -> list[Ratio]:
    """Medians against medians of the same run, 1 and 4 producers; a name says what its bar is, where there is one."""
    hows = ("", ", metadata as bytes", ", arrays only", "_many, groups of 8", "_many, groups of 8, arrays only")
    send, *others = (f"rollway records send{how}" for how in hows)
    limit, looked_at = "memcpy (limit)", "memcpy, looked at (limit)"
    atropos, queue = "Atropos HTTP/JSON, stock", "TransferQueue, simple storage"
    rays = ("ray.put, one object each", "ray.put, 32 per object")
    found = []

    def rate(contender: str, workload: str, producers: int) -> float | None:
        return throughput(record, contender, workload, producers).median

    def best(contenders: tuple[str, ...], workload: str, producers: int) -> float | None:
        return max((r for c in contenders if (r := rate(c, workload, producers)) is not None), default=None)

    def add(name: str, value: float | None, unit: str) -> None:
        found.append(Ratio(name, value, unit))

    for workload in ("2048-token", "512-token", "16384-token"):
        asked = workload == "2048-token"
        for producers in (1, 4):
            where = f"{workload}, {producers} producer{'s' * (producers > 1)}"
            ours = rate(send, workload, producers)
            for way in (send, *others):
                for copying in sorted({1, producers}):
                    share = _per_cent(rate(way, workload, producers), rate(limit, workload, copying))
                    by = "one process" if copying == 1 else f"{copying} processes"
                    bar = " (bar: 70 %)" if asked and copying == 1 else ""
                    add(f"{where}, {way.removeprefix('rollway records ')}, of memcpy by {by}{bar}", share, "%")
                share = _per_cent(rate(way, workload, producers), rate(looked_at, workload, producers))
                add(f"{where}, {way.removeprefix('rollway records ')}, of memcpy, looked at", share, "%")
            share = _per_cent(rate(looked_at, workload, producers), rate(limit, workload, 1))
            add(f"{where}, memcpy, looked at, of memcpy by one process", share, "%")
            cpu = [producer_cpu_ns(record, c, workload, producers).median for c in (limit, send)]
            add(f"{where}, send, of memcpy, by producer CPU", _per_cent(*cpu), "%")
            theirs = (
                ("Atropos HTTP/JSON", rate(atropos, workload, producers), 2000),
                ("ray.put, the better", best(rays, workload, producers), 5),
                ("TransferQueue", rate(queue, workload, producers), 5),
                ("faster-fifo", rate("faster-fifo", workload, producers), None),
            )
            for short, their, bar_x in theirs:
                bar = f" (bar: {bar_x:,})" if asked and bar_x else ""
                add(f"{where}, send / {short}{bar}", _over(ours, their), "x")
    for form in ("arrays", "lists"):
        mine, proposed = f"rollway ZeroCopySHMBuffer, {form}", f"the proposal's buffer, {form}"
        for producers in (1, 4):
            value = _over(rate(mine, "512-buffer", producers), rate(proposed, "512-buffer", producers))
            writers = f"{producers} writer{'s' * (producers > 1)}"
            add(f"512 tokens, {form}, {writers}, ZeroCopySHMBuffer / the proposal's (bar: 5)", value, "x")
        fate = losses(record, mine, "512-buffer", 4)
        wrong = fate and _per_cent(sum(fate[what] for what in ("lost", "repeated", "torn")), fate["sent"])
        add(
            f"512 tokens, {form}, 4 writers, ZeroCopySHMBuffer: lost, repeated or torn (bar: 0)",
            wrong,
            "% of what was sent",
        )
    add("latency, sent to coroutine resumed, p50 (bar: 200 µs)", _p(record, "rollway records read_async", 50), "µs")
    add("latency, sent to coroutine resumed, p99", _p(record, "rollway records read_async", 99), "µs")
    for moment, since, bar in (
        ("resumed", "committed", " (bar: 200 µs)"),
        ("resumed, since the send", "sent", ""),
        ("returned", "sent", ""),
    ):
        ours, end = f"rollway generate() {moment}, at 200/s", moment.split(",")[0]
        add(f"latency, {since} to generate() {end}, p50{bar}", _p(record, ours, 50), "µs")
        add(f"latency, {since} to generate() {end}, p99", _p(record, ours, 99), "µs")
    for contender in memory.CONTENDERS:
        value = extra(record, "memory", contender.label, memory.ratio).median
        bar = " (bar: 1.15)" if contender.key == "rollway" else ""
        add(f"memory for 1,000 in flight, {contender.label}{bar}", value, "x the arrays")
    for batch in assembly.CONTENDERS:
        for form in ("padded", "packed"):
            times = [
                extra(record, "assembly", batch.label, assembly.median_us(form, way)).median
                for way in ("memcpy (limit)", "rollway", "torch")
            ]
            add(f"{batch.label}, {form}, of memcpy (bar: 80 %)", _per_cent(times[0], times[1]), "%")
            add(f"{batch.label}, {form}, rollway / torch", _over(times[2], times[1]), "x")
    add("idle, CPU of the waiting consumer, 4 silent producers", idle_percent(record).median, "% of a core")
    steps = {name: f"rollway records, a step as {name}" for name, form in forms.STEPS.items() if form.arrange is dict}
    plain_step, plain_trajectory = steps.pop(forms.PLAIN), "rollway records send, arrays only"
    trajectories = {name: f"{plain_trajectory}, {name}" for name in forms.TRAJECTORIES if name != forms.PLAIN}
    found += _forms(record, "env_step", plain_step, steps)
    found += _forms(record, "2048-token", plain_trajectory, trajectories)
    return sorted(found, key=lambda each: "(bar: " not in each.name)  # those with a bar first


def _forms(record: Record, workload: str, plain: str, others: dict[str, str]) -> list[Ratio]:
    """What a send costs its producer in other forms, beside a dict of exact arrays."""
    cost = {label: producer_cpu_ns(record, label, workload, 1).median for label in (plain, *others.values())}
    return [
        Ratio(f"{workload}, producer CPU per send, {form} / {forms.PLAIN}", _over(cost[label], cost[plain]), "x")
        for form, label in others.items()
    ]


def _p(record: Record, contender: str, percentile: float) -> float | None:
    return latency_us(record, contender, percentile).median


def _per_cent(a: float | None, b: float | None) -> float | None:
    share = _over(a, b)
    return None if share is None else 100 * share


def _over(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b
