"""Scored groups of which every field is known, and an Atropos environment that makes nothing else. For groups.py.

A group names its worker, the life of that worker and a counter in the first tokens of each of its trajectories, and all
the rest follows from these. `with_images` puts in what a trainer of text has no place for.
"""

from __future__ import annotations

from typing import Any, NamedTuple

SIZE = 4  # trajectories of a group
PROMPT = 4  # tokens: worker, life, counter, repetition


class Name(NamedTuple):
    """Which group it is."""

    worker: int
    life: int
    counter: int


def name_of(tokens: list[int]) -> Name:
    """The group that a trajectory belongs to, by its first tokens."""
    return Name(*tokens[: PROMPT - 1])


def trajectory(name: Name, repetition: int) -> dict[str, Any]:
    """One of them: numbers that no rounding survives, and a tool's answer in the middle that is not trained."""
    worker, life, counter = name
    answer = 8 + (counter * 7 + repetition * 3) % 120
    tokens = [*name, repetition, *((counter * 31 + at * 17 + worker + life) % 150_000 for at in range(answer))]
    trained = [at >= PROMPT and at % 11 != 5 for at in range(len(tokens))]
    return {
        "tokens": tokens,
        "masks": [token if used else -100 for token, used in zip(tokens, trained, strict=True)],
        "inference_logprobs": [-(at + 1) / 7 if used else 1.0 for at, used in enumerate(trained)],
        "scores": (counter % 7 + repetition) / 3,
    }


def scored_group(name: Name, with_images: bool) -> dict[str, Any]:
    """The group as it has to arrive, with every field that Atropos knows."""
    made = [trajectory(name, repetition) for repetition in range(SIZE)]
    columns = {field: [one[field] for one in made] for field in ("tokens", "masks", "scores", "inference_logprobs")}
    return {
        **columns,
        "advantages": [[one["scores"] / 9] * len(one["tokens"]) for one in made],
        "ref_logprobs": [[-0.125 * at for at in range(len(one["tokens"]))] for one in made],
        "messages": [[{"role": "user", "content": f"été {name.counter}"}] for _ in made],
        "generation_params": {"temperature": 0.7, "stop": ["\n"]},
        "group_overrides": {"set_advantage_to_zero": False},
        "overrides": [{"finish_reason": "stop", "repetition": repetition} for repetition in range(SIZE)],
        "images": [f"aGk{name.counter}"] * SIZE if with_images else None,
        "distill_token_ids": [[[token, 0] for token in one["tokens"]] for one in made],
        "distill_logprobs": [[[-0.1, -2.3] for _ in one["tokens"]] for one in made],
    }


def environment_class() -> type[Any]:
    """The environment. A function, because importing Atropos takes seconds."""
    from atroposlib.envs.base import BaseEnv

    class Known(BaseEnv):
        """Hands out its own counter and makes the group of it."""

        name = "known"

        def be(self, worker: int, life: int, with_images: bool) -> None:
            self._worker, self._life, self._with_images, self._next = worker, life, with_images, 0

        async def setup(self) -> None:
            return None

        async def get_next_item(self) -> Any:
            self._next += 1
            return {"id": f"{self._worker}-{self._life}-{self._next - 1}", "counter": self._next - 1}

        async def collect_trajectories(self, item: Any) -> tuple[Any, list[Any]]:
            return scored_group(Name(self._worker, self._life, item["counter"]), self._with_images), []

        async def evaluate(self, *args: Any, **kwargs: Any) -> None:
            return None

    return Known
