"""A local worker and a remote one feed the same learner: shared memory and TCP at once, with a token and metrics."""

import multiprocessing
import secrets

import numpy as np

import rollway

EXAMPLE = {"obs": np.zeros(4, np.float32), "reward": np.zeros(1, np.float32)}
STEPS = 320


def sample(step: int) -> dict[str, np.ndarray]:
    return {"obs": np.full(4, step, np.float32), "reward": np.ones(1, np.float32)}


def local_worker(name: str) -> None:
    with rollway.ShmClient(name, EXAMPLE) as client:
        for step in range(STEPS):
            client.send(sample(step))  # committed when it returns


def remote_worker(host: str, port: int, token: str) -> None:
    with rollway.TcpClient(host, port, EXAMPLE, token=token) as client:
        for step in range(STEPS):
            client.send(sample(step))  # on its way when it returns
        client.wait()  # all of it is in the learner's ring; a lost connection is made again meanwhile


def main() -> None:
    token = secrets.token_hex(16)  # every worker needs it; it never crosses the wire
    transports = [rollway.ShmTransport(), rollway.TcpTransport(token=token)]  # host="0.0.0.0" for other machines
    with rollway.Server(EXAMPLE, batch_size=32, transport=transports) as server:
        context = multiprocessing.get_context("spawn")
        workers = [
            context.Process(target=local_worker, args=(server.name,)),
            context.Process(target=remote_worker, args=("127.0.0.1", server.port, token)),
        ]
        for process in workers:
            process.start()
        total = 0.0
        for batch in server.dataset_iter():
            total += float(batch.batch["reward"].sum())
            if total == 2 * STEPS:
                break
        for process in workers:
            process.join()
        stats = server.stats()
    print(f"{total:.0f} samples, {stats['tcp_samples']} of them over {stats['tcp_accepted']} connection")


if __name__ == "__main__":
    main()
