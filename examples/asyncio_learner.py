"""A learner and a worker in one event loop: waiting blocks neither."""

import asyncio

import numpy as np

import rollway

EXAMPLE = {"tokens": np.zeros(16, np.int32)}


async def worker(name: str) -> None:
    with rollway.ShmClient(name, EXAMPLE) as client:
        for i in range(12):
            await client.send_async({"tokens": np.full(16, i, np.int32)}, version=1)


async def main() -> None:
    with rollway.Server(EXAMPLE, batch_size=4, transport=rollway.ShmTransport(), num_buffers=2) as server:
        sending = asyncio.create_task(worker(server.name))
        for _ in range(3):
            sample = await server.sample_async(timeout=10)
            print(sample.batch["tokens"][:, 0].tolist(), "made with weights", sample.info.versions.tolist())
        await sending


if __name__ == "__main__":
    asyncio.run(main())
