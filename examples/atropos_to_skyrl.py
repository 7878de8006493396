"""An Atropos environment feeds SkyRL's trainer through shared memory: no HTTP between them, no inference engine here.

The environment is an ordinary one, in a process of its own. The trainer is SkyRL's fully asynchronous one with a
simulated update, so that this runs on any machine. Needs atroposlib 0.4.0, and skyrl 0.3.0 without its CUDA parts:
``make test-peers`` installs both.
"""

import asyncio
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import tokenizers

import rollway
from rollway.integrations.atropos import with_transport

GROUPS_PER_STEP, GROUP_SIZE, STEPS = 2, 4, 5


def environment(name: str, tokenizer: str) -> None:
    from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, ScoredDataGroup

    class Guess(BaseEnv):
        """Asks for a number; a made-up model answers. Nothing in it knows of Rollway."""

        async def setup(self) -> None:
            self.asked = 0

        async def get_next_item(self) -> int:
            self.asked += 1
            return self.asked

        async def collect_trajectories(self, item: int) -> tuple[ScoredDataGroup, list]:
            prompt = [1, item]
            answers = [[random.randrange(2, 100) for _ in range(random.randrange(1, 9))] for _ in range(GROUP_SIZE)]
            group = ScoredDataGroup(
                tokens=[prompt + answer for answer in answers],
                masks=[[-100] * len(prompt) + answer for answer in answers],
                scores=[len(answer) + random.random() for answer in answers],
                inference_logprobs=[[1.0] * len(prompt) + [-0.1] * len(answer) for answer in answers],
            )
            return group, []

        async def evaluate(self) -> None:
            pass

    settings = BaseEnvConfig(
        group_size=GROUP_SIZE,
        batch_size=GROUPS_PER_STEP * GROUP_SIZE,
        total_steps=STEPS,
        tokenizer_name=tokenizer,
        use_wandb=False,
        min_items_sent_before_logging=1_000_000,  # Atropos' stand-in for a model has no metrics to log
    )
    guess = with_transport(Guess)(settings, [APIServerConfig()], testing=True)  # ── the one line that changes
    guess.config.transport, guess.config.shm_name = "shm", name  # or --env.transport shm --env.shm_name …
    asyncio.run(guess.env_manager())


def trainer(name: str) -> None:
    from rollway.integrations.skyrl import AtroposSHMGenerator, ExternalFullyAsyncTrainerSim, NoOpInferenceClient
    from rollway.integrations.skyrl.config import prepare

    class Prompts(list):
        """Stands for a dataset: with match=stream, the environment brings its own prompts."""

        def collate_fn(self, rows: list) -> list:
            return rows

    class Words:
        pad_token_id = 0

        def decode(self, tokens: list) -> str:
            return str(tokens)

    class Told(ExternalFullyAsyncTrainerSim):
        """Says what it trains on."""

        async def _run_training(self, batch):
            tokens, trained = int(batch["attention_mask"].sum()), int(batch["loss_mask"].sum())
            print(f"step {self.global_step}: {len(batch)} trajectories, {tokens} tokens, {trained} trained", flush=True)
            return await super()._run_training(batch)

    cfg = prepare(
        [
            f"generator.external.shm_name={name}",
            "generator.external.timeout_s=60",
            "generator.inference_engine.backend=none",
            f"generator.n_samples_per_prompt={GROUP_SIZE}",
            f"trainer.train_batch_size={GROUPS_PER_STEP}",
            f"trainer.policy_mini_batch_size={GROUPS_PER_STEP}",
            "trainer.fully_async.enabled=true",
            "trainer.fully_async.simulate_training=true",
            "trainer.fully_async.simulate_training_step_seconds=0.1",
            "trainer.fully_async.num_parallel_generation_workers=4",
            "trainer.fully_async.max_staleness_steps=2",
            "trainer.algorithm.policy_loss_type=rollout_is",
            "trainer.resume_mode=none",
            "trainer.logger=console",
            "trainer.eval_interval=-1",
            "trainer.ckpt_interval=-1",
            "data.dataloader.num_workers=0",
        ]
    )
    prompt = {"prompt": [], "env_class": None, "env_extras": {}}
    generator = AtroposSHMGenerator.from_config(cfg.generator)
    told = Told(
        cfg=cfg,
        tracker=Quiet(),
        tokenizer=Words(),
        train_dataset=Prompts({**prompt, "uid": str(i)} for i in range(GROUPS_PER_STEP * STEPS)),
        inference_engine_client=NoOpInferenceClient(),
        generator=generator,
    )
    try:
        asyncio.run(told.train())
        print("done:", {name: generator.stats()[name] for name in ("records_committed", "groups_missing")}, flush=True)
    finally:
        generator.close()  # the environment is told, and ends


class Quiet:
    """A tracker that keeps nothing."""

    def log(self, *args, **kwargs) -> None:
        pass

    def finish(self) -> None:
        pass


def write_tokenizer(directory: Path) -> None:
    """Atropos wants one; this knows one word."""
    words = tokenizers.models.WordLevel({"<unk>": 0}, unk_token="<unk>")
    tokenizers.Tokenizer(words).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')


def main() -> None:
    name = rollway.ShmTransport().name
    with tempfile.TemporaryDirectory() as directory:
        write_tokenizer(Path(directory))
        print("starting an environment and a trainer; both import large packages first", flush=True)
        said = Path(directory, "stderr")  # Atropos has much to say; of interest if something is wrong
        with said.open("wb") as stderr:
            child = subprocess.Popen([sys.executable, __file__, name, directory], stderr=stderr)
        try:
            trainer(name)
            print("the environment ended with exit code", child.wait(timeout=30))
        finally:
            if child.poll():
                print("the environment failed:", said.read_text()[-2000:])
            child.kill()


if __name__ == "__main__":
    environment(*sys.argv[1:]) if len(sys.argv) == 3 else main()
