"""Two workers and a learner, in one file: send, reserve, sample."""

import multiprocessing

import numpy as np

import rollway

EXAMPLE = {"obs": np.zeros(4, np.float32), "reward": np.zeros(1, np.float32)}


def worker(name: str, number: int) -> None:
    with rollway.ShmClient(name, EXAMPLE, producer_id=number) as client:
        for step in range(320):
            obs = np.full(4, step, np.float32)
            if step % 2:
                client.send({"obs": obs, "reward": np.ones(1, np.float32)})  # one copy
            else:
                with client.reserve() as slot:  # none: written in place
                    slot["obs"][:] = obs
                    slot["reward"][:] = 1


def main() -> None:
    context = multiprocessing.get_context("spawn")
    with rollway.Server(EXAMPLE, batch_size=32, transport=rollway.ShmTransport()) as server:
        workers = [context.Process(target=worker, args=(server.name, i)) for i in range(2)]
        for process in workers:
            process.start()
        total = 0.0
        for sample in server.dataset_iter():
            total += float(
                sample.batch["reward"].sum()
            )  # views into shared memory: {"obs": (32, 4), "reward": (32, 1)}
            if total == 640:
                break
        for process in workers:
            process.join()
    print(f"640 samples, total reward {total:.0f}")


if __name__ == "__main__":
    main()
