"""What a record costs beside the copy: sending and reading one of a single token, part by part, in one process.

    python benches/record_costs.py [--seconds 0.5]

Prints nanoseconds per record: the first decile of bursts of 2,048, so that what else runs on the machine counts little.
Nothing crosses a core here; `records.py` measures the whole between processes. `looking` is what the consumer of that
benchmark does with arrays that it has already: no part of rollway.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import rollway

_BURST = 2048
_GULP = 64
_GROUP = 8
_SCHEMA = {"tokens": "int32[*]", "logprobs": "float32[*]", "masks": "int8[*]", "score": "float64[]"}
_ITEM = {
    "tokens": np.zeros(1, np.int32),
    "logprobs": np.zeros(1, np.float32),
    "masks": np.ones(1, np.int8),
    "score": np.ones((), np.float64),
}
_KEY = rollway.RecordKey("bench", "train", 0, "problem-1", 3)
_METADATA = {"environment": "gsm8k", "turns": 3, "finish_reason": "stop", "source": 3}
_METADATA_BYTES = json.dumps(_METADATA).encode()


def _look(views: Any, seen: list[float]) -> None:
    tokens, logprobs, masks, score = views
    seen.append(score.item())
    seen.append(tokens.item(0))
    seen.append(tokens.item(-1))
    seen.append(logprobs.item(0) + masks.item(0))


def _sends(client: rollway.ShmRecordClient) -> None:
    send, item = client.send, _ITEM
    for _ in range(_BURST):
        send(item)


def _sends_with_key(client: rollway.ShmRecordClient) -> None:
    send, item, key = client.send, _ITEM, _KEY
    for _ in range(_BURST):
        send(item, key=key)


def _sends_with_metadata(client: rollway.ShmRecordClient, metadata: Any) -> None:
    send, item, key = client.send, _ITEM, _KEY
    for _ in range(_BURST):
        send(item, key=key, metadata=metadata)


def _sends_groups(client: rollway.ShmRecordClient, keys: list[Any] | None, metadata: list[Any] | None) -> None:
    send_many, items = client.send_many, [_ITEM] * _GROUP
    for _ in range(_BURST // _GROUP):
        send_many(items, keys=keys, metadata=metadata)


def _reads(server: rollway.RecordServer, use: Callable[[Any], object] | None) -> None:
    for _ in range(_BURST // _GULP):
        for record in server.read_many(_GULP):
            if use is not None:
                use(record)
            record.release()


def _first_decile(seconds: float, before: Callable[[], object], timed: Callable[[], object]) -> int:
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 10:
        before()
        start = time.perf_counter_ns()
        timed()
        times.append((time.perf_counter_ns() - start) / _BURST)
    return round(float(np.percentile(times, 10)))


def main() -> None:
    """Measures every part and prints a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="per line (0.5)")
    seconds = parser.parse_args().seconds
    with (
        rollway.RecordServer(_SCHEMA, rollway.ShmTransport(), lane_bytes=64 << 20, lanes=1) as server,
        rollway.ShmRecordClient(server.name or "", _SCHEMA) as client,
    ):
        ways: dict[str, Callable[[], None]] = {
            "send, arrays only": lambda: _sends(client),
            "send, with a key": lambda: _sends_with_key(client),
            "send, with key and bytes": lambda: _sends_with_metadata(client, _METADATA_BYTES),
            "send, with key and metadata": lambda: _sends_with_metadata(client, _METADATA),
            "send_many(8), arrays only": lambda: _sends_groups(client, None, None),
            "send_many(8), key and metadata": lambda: _sends_groups(client, [_KEY] * _GROUP, [_METADATA] * _GROUP),
        }

        def drain() -> None:
            while server.try_read_many(_BURST):
                pass

        for what, send in ways.items():
            print(f"{what:32} {_first_decile(seconds, drain, send):6} ns")
            drain()
        uses: dict[str, Callable[[Any], object] | None] = {
            "take and release": None,
            "… and one view": lambda record: record["tokens"],
            "… and all four views": lambda record: record.values(),
            "… and all four by name": lambda record: record.fields,
        }
        for what, use in uses.items():

            def read(use: Callable[[Any], object] | None = use) -> None:
                _reads(server, use)

            print(f"{what:32} {_first_decile(seconds, lambda: _sends(client), read):6} ns")
    seen: list[float] = []

    def look() -> None:
        views = tuple(_ITEM.values())
        for _ in range(_BURST):
            _look(views, seen)

    print(f"{'looking':32} {_first_decile(seconds, seen.clear, look):6} ns")


if __name__ == "__main__":
    main()
