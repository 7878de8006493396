"""The two sides of a training run, each for a process of its own: SkyRL's real trainers, and an Atropos environment.

Importing this takes half a minute. The tests preload it into a fork server once, and each side is a fork of that.
Nothing is stubbed but the model: forward and update.
"""

import asyncio
import json
import os
import pickle
import sys

from rollway.integrations.atropos import with_transport
from rollway.integrations.skyrl import (
    AtroposSHMGenerator,
    ExternalFullyAsyncTrainerSim,
    ExternalRayPPOTrainer,
    NoOpInferenceClient,
)
from rollway.integrations.skyrl.config import prepare

from tests.support import atropos_toy_env  # isort: skip
import datasets
import tokenizers
import torch
from skyrl.train.entrypoints import main_base
from skyrl.train.utils.tracking import Tracking

GROUP_SIZE = 4

SETTINGS = {
    "trainer.policy.model.path": "none",
    "trainer.logger": "console",
    "trainer.resume_mode": "none",
    "trainer.eval_interval": -1,
    "trainer.ckpt_interval": -1,
    "trainer.hf_save_interval": -1,
    "trainer.train_batch_size": 2,
    "trainer.policy_mini_batch_size": 2,
    "trainer.micro_train_batch_size_per_gpu": 1,
    "trainer.micro_forward_batch_size_per_gpu": 1,
    "trainer.algorithm.use_kl_loss": "false",
    "data.dataloader.num_workers": 0,
    "generator.n_samples_per_prompt": GROUP_SIZE,
    "generator.inference_engine.backend": "none",
    "generator.external.timeout_s": 60,
}
FULLY_ASYNC = {
    "trainer.fully_async.enabled": "true",
    "trainer.fully_async.simulate_training": "true",
    "trainer.fully_async.simulate_training_step_seconds": 0,
    "trainer.fully_async.num_parallel_generation_workers": 4,
    "trainer.fully_async.max_staleness_steps": 2,
    "trainer.algorithm.policy_loss_type": "rollout_is",
}


def config(**settings):
    """SkyRL's configuration, read as from its command line. ``a__b=1`` is ``a.b=1``."""
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return prepare([f"{name}={value}" for name, value in {**SETTINGS, **named}.items()])


class Prompts:
    """A dataset as SkyRL's own: instance i is row i."""

    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return {
            "prompt": [{"role": "user", "content": f"{index}"}],
            "env_class": None,
            "env_extras": {},
            "uid": str(index),
        }

    def collate_fn(self, rows):
        return rows


class Words:
    """As much of a tokenizer as the trainer needs."""

    pad_token_id = eos_token_id = 0

    def decode(self, tokens):
        return " ".join(map(str, tokens))


class Dispatch:
    """Where SkyRL's Ray actors would be. It has no weights to push: it must not be asked to."""

    def get_lcm_dp_size(self):
        return 1

    def empty_cache(self, model=None):
        pass


class Recorded:
    """Notes every batch that a trainer is about to train on. Forward and update are all that is stubbed."""

    def _execute_forward_pass(self, model, data, key, mini_batch_boundaries):
        return torch.zeros(len(data["sequences"]), data.metadata["response_length"])

    def _execute_training_step(self, model, data):
        self.note(data)
        return {}

    def note(self, data):
        names = ("sequences", "attention_mask", "response_mask", "loss_mask", "rollout_logprobs")
        self.journal["batches"].append({name: data[name].tolist() for name in names})
        self.progress()

    def postprocess_generator_output(self, output, uids, **kwargs):
        self.journal["rewards"] += output["rewards"]
        self.journal["uids"] += uids
        return super().postprocess_generator_output(output, uids, **kwargs)


class RecordedTrainer(Recorded, ExternalRayPPOTrainer):
    pass


class RecordedSim(Recorded, ExternalFullyAsyncTrainerSim):
    async def _run_training(self, training_input):
        self.note(training_input)
        return await super()._run_training(training_input)


class CountingGenerator(AtroposSHMGenerator):
    """Knows how many calls waited at once."""

    at_once = most_at_once = 0

    async def generate(self, input_batch):
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await super().generate(input_batch)
        finally:
            self.at_once -= 1


def ready():
    """Says, by its end, that everything is imported."""


def train(settings, prompts, journal_path, steps=None):
    """Runs SkyRL's ``train()`` to its end, and leaves in the journal all that it trained on.

    ``steps`` is a pipe end; after each step its number goes through it.
    """
    _log_to(f"{journal_path}.trainer.log")
    cfg = config(**settings)
    simulated = cfg.trainer.fully_async.simulate_training
    generator = CountingGenerator.from_config(cfg.generator)
    trainer = (RecordedSim if simulated else RecordedTrainer)(
        cfg=cfg,
        tracker=Tracking("rollway", "test", "console", cfg),
        tokenizer=Words(),
        train_dataset=Prompts(prompts),
        inference_engine_client=NoOpInferenceClient(),
        generator=generator,
    )
    trainer.dispatch = Dispatch()
    trainer.journal = {"batches": [], "rewards": [], "uids": []}
    trainer.progress = lambda: steps and steps.send(len(trainer.journal["batches"]))
    try:
        asyncio.run(trainer.train())
        trainer.journal["most_at_once"] = generator.most_at_once
        trainer.journal["stats"] = generator.stats()
        trainer.journal["version"] = generator.version
        trainer.journal["engine_version"] = trainer.inference_engine_client.weight_version
    finally:
        generator.close()
    with open(journal_path, "wb") as file:
        pickle.dump(trainer.journal, file)


def main(arguments, log_path):
    """SkyRL's own command line."""
    _log_to(log_path)
    sys.argv[1:] = arguments
    choose = datasets.Dataset.filter  # SkyRL lets it start processes, which takes fifteen seconds for one prompt
    datasets.Dataset.filter = lambda self, *args, num_proc, **kwargs: choose(self, *args, **kwargs)
    main_base.main()


class TextConfig(atropos_toy_env.ToyConfig):
    first_item: int = 0


class TextEnv(atropos_toy_env.ToyEnv):
    """The toy environment without its pictures, which a trainer of text refuses. It can begin in the middle."""

    env_config_cls = TextConfig

    @classmethod
    def config_init(cls):
        config, servers = super().config_init()
        return TextConfig(**config.model_dump()), servers

    async def get_next_item(self):
        item = await super().get_next_item()
        return item and {**item, "id": self.config.first_item + item["id"]}

    async def collect_trajectories(self, item):
        group, backlog = await super().collect_trajectories(item)
        del group["images"]
        return group, backlog


def environment(settings, log_path):
    """Runs an Atropos environment, unmodified, until the learner closes."""
    _log_to(log_path)
    kind = with_transport(TextEnv)
    config, servers = kind.config_init()
    chosen = config.model_copy(
        update={
            "group_size": GROUP_SIZE,
            "batch_size": 2 * GROUP_SIZE,
            "total_steps": 1_000_000,
            "min_items_sent_before_logging": 1 << 60,
            "use_wandb": False,
            **settings,
        }
    )
    asyncio.run(kind(chosen, servers, testing=True).env_manager())


def write_tokenizer(directory):
    """A tokenizer of two words, as a directory that transformers can load."""
    words = tokenizers.models.WordLevel({"<unk>": 0, "<eos>": 1}, unk_token="<unk>")
    tokenizers.Tokenizer(words).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "eos_token": "<eos>",
                "unk_token": "<unk>",
                "chat_template": "{{ messages[0]['content'] }}",
            }
        )
    )


def _log_to(path):
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
