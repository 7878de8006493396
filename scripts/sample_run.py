"""A small run to take pictures of: a learner, workers of two kinds, weights. The other scripts start it.

`python scripts/sample_run.py` prints the pids of its workers as one line of JSON, once all are attached. It ends when
its input does.
"""

import json
import multiprocessing
import sys
import threading
import time

import numpy as np

import rollway
from rollway.weights import WeightSync

RING, RECORDS, WEIGHTS = "rollouts", "trajectories", "policy"
SAMPLE = {"obs": np.zeros((84, 84), np.uint8), "action": np.int32(0), "reward": np.float32(0)}
SCHEMA = {"tokens": "int32[n]", "logprobs": "float32[n]", "score": "float32[]"}


def roll_out(seed: int) -> None:
    """A worker with an environment: steps, sends samples, and follows the weights."""
    random = np.random.default_rng(seed)
    with rollway.ShmClient(RING, SAMPLE) as client, WeightSync.attach(WEIGHTS) as policy:
        while True:
            policy.read_weights()
            version = policy.version
            for _ in range(20 + 20 * seed):
                time.sleep(0.001 + 0.001 * random.random())
                obs = random.integers(0, 40, (84, 84)).astype(np.uint8)
                reward = np.float32(random.normal())
                client.send({"obs": obs, "action": random.integers(4), "reward": reward}, version=version)


def generate(seed: int) -> None:
    """A worker with a language model: sends trajectories of any length."""
    random = np.random.default_rng(100 + seed)
    with rollway.ShmRecordClient(RECORDS, SCHEMA) as client:
        for number in range(sys.maxsize):
            n = int(random.integers(40, 900))
            time.sleep(n / 20_000)
            record = {
                "tokens": random.integers(0, 32_000, n).astype(np.int32),
                "logprobs": -random.exponential(0.7, n).astype(np.float32),
                "score": float(random.random() < 0.4),
            }
            messages = [
                {"role": "user", "content": f"What is {number} + {seed}?"},
                {"role": "assistant", "content": f"{number} + {seed} = {number + seed}."},
            ]
            key = rollway.RecordKey("run", "train", 0, f"task-{number}", seed)
            client.send(record, key=key, metadata={"messages": messages}, version=1 + number // 50)


def learn_from_rollouts(server: rollway.Server, policy: WeightSync) -> None:
    for step, sample in enumerate(server.dataset_iter()):
        time.sleep(0.012)  # the gradient step
        if step % 8 == 0:
            policy.write_weights({"w": np.full((64, 64), float(sample.batch["reward"].mean()), np.float32)})


def learn_from_records(server: rollway.RecordServer) -> None:
    while True:
        for record in server.read_many(8):
            record.release()
        time.sleep(0.02)


def main() -> None:
    processes = multiprocessing.get_context("spawn")
    with (
        rollway.Server(SAMPLE, 32, rollway.ShmTransport(RING), num_buffers=4) as server,
        rollway.RecordServer(SCHEMA, rollway.ShmTransport(RECORDS)) as records,
        WeightSync({"w": (64, 64)}, name=WEIGHTS) as policy,
    ):
        policy.write_weights({"w": np.zeros((64, 64), np.float32)})
        threads = [(learn_from_rollouts, (server, policy)), (learn_from_records, (records,))]
        for target, args in threads:
            threading.Thread(target=target, args=args, daemon=True).start()
        workers = [processes.Process(target=roll_out, args=(seed,)) for seed in range(3)]
        workers += [processes.Process(target=generate, args=(seed,)) for seed in range(2)]
        for worker in workers:
            worker.start()
        while server.stats()["producers_alive"] < 3 or records.stats()["producers_alive"] < 2:
            time.sleep(0.05)
        print(json.dumps([worker.pid for worker in workers]), flush=True)
        sys.stdin.read()
        for worker in workers:
            worker.kill()
            worker.join()


if __name__ == "__main__":
    main()
