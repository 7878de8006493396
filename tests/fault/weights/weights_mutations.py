"""Weights whose schema, leaf sizes or inventory somebody changed: attached to, mirrored and read, thousands of times.

What a reader writes to its own memory is decided by bytes that another process, or another host, wrote. Each mutation must
be refused with a `RollwayError`, or read without a byte outside the arrays: under AddressSanitizer (``make asan``) such a
byte ends the process. Half of the mutations are made in a segment, to which a reader then attaches. The other half are
made on the wire, in the inventory that a learner sends; a `TcpWeights` fetches it, and other readers attach to its name.

    python -m tests.fault.weights.weights_mutations --mutations 10000
    python -m tests.fault.weights.weights_mutations --way attach --first 17 --mutations 1    # one of them again
"""

import argparse
import contextlib
import json
import mmap
import os
import random
import shutil
import socket
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

import rollway
from tests.fault.segment.live_fuzz import Process
from tests.fault.segment.live_fuzz_structures import expect

SHAPES = {"b": (5,), "deep": {"s": (), "w": (16, 8)}}
TOKEN = "weights mutations"
BATCH = 250
"""How many mutations one process tries; a crash costs the rest of them."""
LIMIT_S = 120.0
"""For a batch: most mutations take a few milliseconds."""
NUMBERS = (0, 1, 2, 4, 6, 7, 9, 15, 17, 64, 80, 127, 128, 129, 255, 1024, 1 << 20, 1 << 40, 1 << 61, 1 << 63, -1)
"""None that a machine has just about enough memory for: what is reserved in vain is a fault, and shows as one that ends."""
DTYPES = (
    "int64",
    "float32",
    "uint8",
    "bool",
    "complex128",
    "object",
    "O",
    "|O8",
    "str",
    "<U9",
    "bfloat16",
    "V999",
    "M8[ns]",
    "",
)


def make(name):
    sync = rollway.SharedWeightSync(SHAPES, dtypes="int64", shm_name=name, max_buffers=3, max_readers=6)
    sync.write_weights(tree(7))
    return sync


def tree(value):
    return {"b": np.full(5, value), "deep": {"s": np.full((), value), "w": np.full((16, 8), value)}}


# ── mutations ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def mutated_text(text, rng):
    """A schema text that differs: as JSON in most cases, in its bytes in the others."""
    if rng.random() < 0.3:
        text = bytearray(text)
        for _ in range(rng.randrange(1, 4)):
            text[rng.randrange(len(text))] = rng.choice([rng.randrange(256), *b'0123456789",[]{}-.e'])
        return bytes(text)
    schema = json.loads(text)
    for _ in range(rng.randrange(1, 3)):
        change(schema, rng)
    return json.dumps(schema, separators=(",", ":")).encode()


def change(schema, rng):
    leaves = schema["leaves"]
    leaf = rng.choice(leaves) if leaves else None
    how = rng.randrange(9)
    if leaf is None or how == 0:
        leaves.append(["more", rng.choice(DTYPES), [rng.choice(NUMBERS)]])
    elif how <= 3:
        dims = leaf[2] = leaf[2] if isinstance(leaf[2], list) else []
        if dims and rng.random() < 0.7:
            dims[rng.randrange(len(dims))] = rng.choice(NUMBERS)
        else:
            dims.insert(rng.randrange(len(dims) + 1), rng.choice(NUMBERS))
    elif how <= 5:
        leaf[1] = rng.choice(DTYPES)
    elif how == 6:
        leaves.remove(leaf)
    elif how == 7:
        rng.shuffle(leaves)
    else:
        leaf[rng.randrange(3)] = rng.choice([None, 1, 1.5, "x", [], [[]], {}, True])


def mutated_sizes(sizes, rng):
    sizes = list(sizes)
    for _ in range(rng.randrange(1, 3)):
        i = rng.randrange(len(sizes))
        sizes[i] = rng.choice([*NUMBERS, sizes[i] + 8, sizes[i] - 8, sizes[i] * 2, sizes[i] + 1]) % (1 << 64)
    return sizes


class Target:
    """Where the parts of an inventory lie in some bytes, for changing them."""

    def __init__(self, text, sizes):
        self.text, self.sizes = text, sizes

    def mutate(self, rng):
        """The text and the sizes, at least one of them changed."""
        which = rng.randrange(4)
        text = mutated_text(self.text, rng) if which != 0 else self.text
        sizes = mutated_sizes(self.sizes, rng) if which in (0, 1) else self.sizes
        return text, sizes


# ── use ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def tried(function, *args, **kwargs):
    try:
        return function(*args, **kwargs)
    except rollway.RollwayError:
        return None


def use(reader):
    """Reads in every way there is."""
    own = tried(reader.read_weights)
    for leaf in leaves_of(own):
        expect(not leaf.dtype.hasobject, "an array of objects")
        leaf.sum() if leaf.dtype.kind in "iufcb" else leaf.tobytes()
    mine = tree(0)
    if tried(reader.read_weights_into, mine) is not None:
        expect(all(leaf.nbytes in (8, 40, 1024) for leaf in leaves_of(mine)), "arrays of their own size")
    tried(reader.read_weights, like=tree(0))
    tried(reader.read_weights_into, {"b": np.zeros(5, np.int64)})


def leaves_of(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [leaf for part in value for leaf in leaves_of(part)]
    return [] if value is None else [np.asarray(value)]


class Attaching:
    """Mutations of the segment: each in a copy of its own."""

    def __init__(self, directory):
        self.directory = directory
        with make("original"):
            self.image = (directory / "rollway.original").read_bytes()
        seats, schema_bytes = struct.unpack_from("I", self.image, 28)[0], struct.unpack_from("Q", self.image, 40)[0]
        self.text_at = 4096 + seats * 128
        self.body_at = -(-(self.text_at + schema_bytes) // 4096) * 4096
        self.sizes_at = self.body_at + 256 + seats * 64
        sizes = struct.unpack_from("3Q", self.image, self.sizes_at)
        expect(sum(sizes) == 1072, f"the sizes of the leaves are at another place: {sizes}")
        self.target = Target(self.image[self.text_at : self.text_at + schema_bytes], sizes)

    def try_one(self, rng):
        text, sizes = self.target.mutate(rng)
        image = bytearray(self.image)
        text = text[: self.body_at - self.text_at]
        image[self.text_at : self.text_at + len(text)] = text
        struct.pack_into("Q", image, 40, len(text))
        struct.pack_into("3Q", image, self.sizes_at, *sizes)
        path = self.directory / "rollway.copy"
        path.touch(0o600)
        path.write_bytes(image)
        try:
            if (reader := tried(rollway.SharedWeightSync.attach, "copy")) is not None:
                with reader:
                    use(reader)
                    tried(reader.write_weights, tree(1))
                    tried(reader.update_weights, {"b": np.ones(5, np.int64)})
        finally:
            path.unlink(missing_ok=True)

    def close(self):
        pass


class Mirroring:
    """Mutations of the inventory on its way from a learner: a proxy makes them."""

    def __init__(self, directory):
        self.learner = make("learner")
        endpoint = self.learner.serve(rollway.TcpTransport(token=TOKEN))
        image = (directory / "rollway.learner").read_bytes()
        seats, schema_bytes = struct.unpack_from("I", image, 28)[0], struct.unpack_from("Q", image, 40)[0]
        text = image[4096 + seats * 128 :][:schema_bytes]
        self.target = Target(text, (40, 8, 1024))
        self.proxy = Proxy(endpoint.port, text)

    def try_one(self, rng):
        text, sizes = self.target.mutate(rng)
        self.proxy.replacement = sizes, text
        stop = threading.Event()
        waiting = threading.Thread(target=self._attach_meanwhile, args=(stop,))
        waiting.start()
        try:
            mirror = tried(
                rollway.TcpWeights,
                "127.0.0.1",
                self.proxy.port,
                token=TOKEN,
                name="mirror",
                connect_timeout_s=0.5,
                reconnect_timeout_s=0.05,
                like=tree(0) if rng.random() < 0.3 else None,
            )
            if mirror is not None:
                with mirror:
                    tried(mirror.wait_for_version, 1, 0.2)
                    use(mirror)
                    if (reader := tried(rollway.SharedWeightSync.attach, "mirror")) is not None:
                        with reader:
                            use(reader)
        finally:
            stop.set()
            waiting.join()

    def _attach_meanwhile(self, stop):
        while not stop.is_set():
            reader = tried(rollway.SharedWeightSync.attach, "mirror", connect_timeout_s=0.02)
            if reader is not None:
                with reader:
                    tried(reader.wait_for_version, 1, 0.05)
                    use(reader)

    def close(self):
        self.proxy.close()
        self.learner.close()


class Proxy:
    """Between a worker and a learner: passes everything on, but for the inventory."""

    def __init__(self, port, text):
        self._learner, self._text = port, text
        self.replacement = (), b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                worker, _ = self._listener.accept()
                learner = socket.create_connection(("127.0.0.1", self._learner))
                threading.Thread(target=self._pass_on, args=(worker, learner, False), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(learner, worker, True), daemon=True).start()

    def _pass_on(self, source, sink, changed):
        held = b""
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not changed:
                    sink.sendall(data)
                    continue
                held += data
                at = held.find(self._text)
                if at >= 0:
                    held = self._replaced(held, at)
                    changed = False
                elif self._text[:20] in held[-len(self._text) :]:
                    continue  # Half of it.
                sink.sendall(held)
                held = b""
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _replaced(self, held, at):
        """Before the text lie the sizes, the lineage with two numbers, and the header of the frame, whose length is last."""
        sizes, text = self.replacement
        sizes_at = at - 8 * len(sizes)
        head = held[sizes_at - 16 : sizes_at]
        length = struct.pack("<Q", len(head) + 8 * len(sizes) + len(text))
        changed = struct.pack(f"<{len(sizes)}Q", *sizes) + text
        return held[: sizes_at - 24] + length + head + changed + held[at + len(self._text) :]

    def close(self):
        self._listener.close()


WAYS = {"attach": Attaching, "mirror": Mirroring}


# ── running ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def run_batch(way, numbers, base, progress):
    """In a process of its own."""
    directory = Path(tempfile.mkdtemp(dir=base))
    os.environ["ROLLWAY_SHM_DIR"] = str(directory)
    attempt = WAYS[way](directory)
    for number in numbers:
        progress[:8] = struct.pack("q", number)
        attempt.try_one(random.Random(f"{way} {number}"))
    attempt.close()
    expect(not list(directory.iterdir()), f"left behind: {list(directory.iterdir())}")


def run(way, first, count, base, most):
    """Gives how many were tried, and how many failed. Goes on behind one that fails, until ``most`` have."""
    failed, number, end = 0, first, first + count
    while number < end and failed < most:
        progress = mmap.mmap(-1, 8)
        batch = range(number, min(number + BATCH, end))
        process = Process(way, run_batch, way, batch, base, progress)
        while process.status is None and time.monotonic() - process.started < LIMIT_S:
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if pid:
                process.status = status
            time.sleep(0.01)
        fault = process.fault() if process.status is not None else f"no end within {LIMIT_S:.0f} s"
        if process.status is None:
            process.kill_group()
            os.waitpid(process.pid, 0)
        number = batch.stop
        if fault:
            failed += 1
            (last,) = struct.unpack("q", progress[:8])
            number = last + 1
            print(f"FAILED {way}, mutation {last}: {fault}")
            print(f"  again: python -m tests.fault.weights.weights_mutations --way {way} --first {last} --mutations 1")
            print("\n".join(f"    | {line}" for line in process.said().splitlines()[:60]), flush=True)
        os.close(process.errors)
    return number - first, failed


def main():
    parser = argparse.ArgumentParser(description="Weights with mutated schemas, leaf sizes and inventories.")
    parser.add_argument("--mutations", type=int, default=10_000, help="how many, over both ways")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--way", choices=WAYS, help="one way alone")
    parser.add_argument("--max-failures", type=int, default=5, help="stop after so many, of each way")
    options = parser.parse_args()
    base = tempfile.mkdtemp(prefix="weights-mutations.", dir=os.environ.get("ROLLWAY_SHM_DIR", "/dev/shm"))
    ways = [options.way] if options.way else list(WAYS)
    failed = 0
    try:
        for way in ways:
            count = max(1, options.mutations // len(ways))
            began = time.monotonic()
            done, wrong = run(way, options.first, count, base, options.max_failures)
            seconds = time.monotonic() - began
            print(f"{way}: {done} mutations from {options.first} on, {wrong} failed, {seconds:.1f} s", flush=True)
            failed += wrong
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
