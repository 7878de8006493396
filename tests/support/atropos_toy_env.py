"""An Atropos environment as its users write them: it knows nothing of Rollway. Every group follows from its item's id."""

import json
import os
from typing import Any

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, ScoredDataGroup
from pydantic import Field


class ToyConfig(BaseEnvConfig):
    items: int = Field(default=1_000_000, description="How many items there are")
    epochs: int = Field(default=1, description="How often they come")
    flaws: bool = Field(default=False, description="Whether some groups are of the kind that Atropos drops")
    journal: str = Field(default="", description="File to which evaluations are written")


def trajectory(item: int, repetition: int) -> dict[str, Any]:
    """What a model would have said: as the harness gives it back, with numbers that no rounding survives."""
    prompt, answer = 3 + item % 5, 1 + (item * 7 + repetition * 3) % 40
    tokens = [(item * 31 + position * 17 + repetition) % 150_000 for position in range(prompt + answer)]
    return {
        "tokens": tokens,
        "masks": [-100] * prompt + tokens[prompt:],
        "scores": (item % 7 + repetition) / 3,
        "inference_logprobs": [1.0] * prompt + [-(position + 1) / 7 for position in range(answer)],
    }


def expected_group(item: int, size: int) -> dict[str, Any]:
    """The group of an item, as it has to arrive: Atropos itself puts in the fields that are None."""
    made = [trajectory(item, repetition) for repetition in range(size)]
    return {
        "tokens": [one["tokens"] for one in made],
        "masks": [one["masks"] for one in made],
        "scores": [one["scores"] for one in made],
        "inference_logprobs": [one["inference_logprobs"] for one in made],
        "advantages": [[one["scores"] / 9] * len(one["tokens"]) for one in made],
        "messages": [[{"role": "user", "content": f"été {item}"}] for _ in made],
        "images": [f"aGk{item}", None][:1] * size,
        "generation_params": {"temperature": 0.7, "stop": ["\n"]},
        "group_overrides": {"set_advantage_to_zero": False},
        "overrides": [{"repetition": repetition} for repetition in range(size)],
        "ref_logprobs": None,
        "distill_token_ids": [[[token, 0] for token in one["tokens"]] for one in made],
        "distill_logprobs": [[[-0.1, -2.3] for _ in one["tokens"]] for one in made],
    }


class ToyEnv(BaseEnv):
    name = "toy"
    env_config_cls = ToyConfig

    @classmethod
    def config_init(cls):
        return ToyConfig(group_size=4, use_wandb=False, wandb_name="toy"), [APIServerConfig(api_key="x")]

    async def setup(self):
        self.iter = 0

    async def get_next_item(self):
        if self.iter >= self.config.items * self.config.epochs:
            return None
        self.iter += 1
        return {"id": (self.iter - 1) % self.config.items, "question": "…"}

    async def collect_trajectories(self, item):
        number, size = item["id"], self.config.group_size
        group = ScoredDataGroup(**expected_group(number, size))
        for name in ("ref_logprobs",):
            del group[name]
        if self.config.flaws:
            if number % 10 == 3:
                group["scores"] = [0.5] * size
            if number % 10 == 5:
                group = {
                    name: value[:-1] if name in ("tokens", "masks", "scores") else value
                    for name, value in group.items()
                }
            if number % 10 == 7:
                raise RuntimeError("the model did not answer")
            if number % 10 == 9:
                group["tokens"] = [[1] * 200] * size
                group["masks"] = [[1] * 200] * size
        return group, []

    async def evaluate(self, *args, **kwargs):
        if self.config.journal:
            with open(self.config.journal, "a") as journal:
                journal.write(json.dumps({"pid": os.getpid(), "step": self.status_dict["current_step"]}) + "\n")

    def save_checkpoint(self, step, data=None):
        super().save_checkpoint(step, {"iter": self.iter})


class ForgetfulEnv(ToyEnv):
    """Leaves the gathering to Atropos, which loses the logprobs."""

    name = "forgetful"

    async def collect_trajectory(self, item):
        self.repetition = (getattr(self, "repetition", -1) + 1) % self.config.group_size
        return trajectory(item["id"], self.repetition), []

    collect_trajectories = BaseEnv.collect_trajectories


if __name__ == "__main__":
    ToyEnv.cli()
