"""Groups, made up and sent as an Atropos environment sends them, and what SkyRL asks for. Each token follows from the
instance."""

from itertools import repeat

from rollway import RecordKey
from rollway.integrations.atropos import ATROPOS_SCHEMA, encode_group
from rollway.integrations.skyrl import AtroposSHMGenerator

from skyrl.train.generators.base import BatchMetadata, TrajectoryID  # isort: skip

__all__ = ["ATROPOS_SCHEMA", "batch", "data", "generator_of", "ids", "prompts", "send_group", "tombstone"]

PROMPT = 2


def mark(instance):
    """A token that no other instance has."""
    return int.from_bytes(instance.encode()[-3:], "big")


def prompts(*instances, size=1):
    """The prompts of these groups, one for each trajectory."""
    return [[mark(instance), repetition] for instance in instances for repetition in range(size)]


def group(instance, size, marks=()):
    first = marks[0] if marks else mark(instance)
    tokens = [[first, repetition, 50 + repetition, 60] for repetition in range(size)]
    return {
        "tokens": tokens,
        "masks": [[-100] * PROMPT + row[PROMPT:] for row in tokens],
        "scores": [float(repetition) if size > 1 else 1.0 for repetition in range(size)],
        "inference_logprobs": [[1.0] * PROMPT + [-0.5, -0.25] for _ in tokens],
        "messages": None,
    }


def send_group(
    client,
    instance="a",
    size=1,
    *,
    run="test",
    phase="train",
    step=0,
    version=0,
    order=None,
    marks=(),
    logprobs=(),
    **fields,
):
    """Sends a group. ``order``: which of its trajectories, and in which order."""
    made = {**group(instance, size, marks), **fields}
    if logprobs is None:
        del made["inference_logprobs"]
    elif logprobs:
        made["inference_logprobs"] = logprobs
    elif "tokens" in fields:
        made["inference_logprobs"] = [[-1.0] * len(row) for row in fields["tokens"]]
    records = encode_group(made)
    versions = version if isinstance(version, tuple) else tuple(repeat(version, size))
    for repetition in range(size) if order is None else order:
        key = RecordKey(run, phase, step, instance, repetition)
        encoded = records[repetition]
        client.send(encoded.data, key=key, metadata=encoded.metadata, version=versions[repetition])


def data():
    """The arrays of one record."""
    return encode_group(group("a", 1))[0].data


def tombstone(client, instance, repetition=0, reason="dropped"):
    """Says that a trajectory will not come."""
    client.tombstone(RecordKey("test", "train", 0, instance, repetition), reason)


def ids(*instances, size=1):
    return [TrajectoryID(instance, repetition) for instance in instances for repetition in range(size)]


def batch(*instances, size=1, phase="train", step=1, logprobs=1):
    """What SkyRL asks for: each instance, ``size`` times."""
    asked = ids(*instances, size=size)
    return {
        "prompts": [[{"role": "user", "content": one.instance_id}] for one in asked],
        "env_classes": [None] * len(asked),
        "env_extras": [{}] * len(asked),
        "sampling_params": {"logprobs": logprobs},
        "trajectory_ids": asked,
        "batch_metadata": BatchMetadata(step, phase),
    }


def generator_of(server, *, group_size=1, timeout_s=20.0, **options):
    return AtroposSHMGenerator(server, group_size=group_size, timeout_s=timeout_s, **options)
