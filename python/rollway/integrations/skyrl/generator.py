"""AtroposSHMGenerator: SkyRL's generator, where an Atropos environment generates.

`generate` waits for trajectories and returns them in SkyRL's format. Any number of calls may wait at once; the
`Dispatcher` decides which call gets which group. The generator runs no environments and moves no weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput
from skyrl.train.generators.utils import apply_overlong_filtering, get_rollout_metrics

from rollway import InvalidArgument, RecordServer
from rollway.deprecation import renamed_arguments
from rollway.integrations.skyrl.config import ExternalConfig
from rollway.integrations.skyrl.dispatcher import Dispatcher
from rollway.integrations.skyrl.errors import TrajectoryUnusable
from rollway.integrations.skyrl.request import request_of
from rollway.integrations.skyrl.stash import Match, Stash
from rollway.integrations.skyrl.trajectory import Trajectory, trajectory_of
from rollway.records import Group

_RULES = ("match", "on_missing", "timeout_s", "max_staleness", "max_stash", "group_timeout_s", "peer_timeout_s")
"""Settings that `ExternalConfig` and the generator have in common."""


class AtroposSHMGenerator(GeneratorInterface):
    """Moves trajectories from Atropos environments into SkyRL's trainer, in place of its inference engine.

    Args:
        server: Where the records come from, with `ATROPOS_SCHEMA`. It is closed by `close`.
        match: ``"stream"``: a request gets the next complete group, of any instance. ``"id"``: it gets the next group
            of the same phase and instance; the environment must produce what the dataset asks for.
        on_missing: When the environment dropped a group, or it is too old, or nothing in it is trained:
            ``"substitute"`` takes the next one in its place (only with ``"stream"``), ``"raise"`` raises
            `TrajectoryMissing`.
        group_size: Trajectories per group in training: ``generator.n_samples_per_prompt``, which the environment's
            group_size must be too.
        eval_group_size: The same in evaluation.
        timeout_s: How long a call waits before it raises `TrajectoryTimeout`; ``None``: for ever.
        max_staleness: How many versions behind the last `publish` a trajectory may be; ``None``: any.
        max_stash: How many records to hold that no call waits for, before `StashFull`.
        group_timeout_s: After how long an incomplete group counts as missing; ``None``: never.
        peer_timeout_s: How long a call waits for a new environment when every one is gone and at least one died, before
            it raises `PeerDied`; ``None``: until the timeout.
        zero_reward_on_non_stop: As in SkyRL's own generator.
        overlong_filtering: As in SkyRL's own generator (``apply_overlong_filtering``).
    """

    @renamed_arguments(group_deadline_s="group_timeout_s")
    def __init__(
        self,
        server: RecordServer,
        *,
        match: Match = "stream",
        on_missing: str | None = None,
        group_size: int,
        eval_group_size: int = 1,
        timeout_s: float | None = 600.0,
        max_staleness: int | None = None,
        max_stash: int = 4096,
        group_timeout_s: float | None = 300.0,
        peer_timeout_s: float | None = 60.0,
        zero_reward_on_non_stop: bool = False,
        overlong_filtering: bool = False,
    ) -> None:
        rules = ExternalConfig(
            match=match,
            on_missing=on_missing,
            timeout_s=timeout_s,
            max_staleness=max_staleness,
            max_stash=max_stash,
            group_timeout_s=group_timeout_s,
            peer_timeout_s=peer_timeout_s,
        )
        sizes = {"train": group_size, "eval": eval_group_size}
        self._server = server
        self._stash = Stash(match, sizes, substitutes=rules.substitutes, group_timeout_s=group_timeout_s)
        self._dispatcher = Dispatcher(server, self._stash, rules)
        self._group_size = group_size
        self._zero_reward_on_non_stop = zero_reward_on_non_stop
        self._overlong_filtering = overlong_filtering

    @classmethod
    def from_config(cls, generator_cfg: Any) -> AtroposSHMGenerator:
        """Makes the records and the generator from SkyRL's ``cfg.generator``, with ``external`` in it."""
        external: ExternalConfig = generator_cfg.external
        return cls(
            external.open(),
            **{name: getattr(external, name) for name in _RULES},
            group_size=generator_cfg.n_samples_per_prompt,
            eval_group_size=generator_cfg.eval_n_samples_per_prompt,
            zero_reward_on_non_stop=generator_cfg.zero_reward_on_non_stop,
            overlong_filtering=generator_cfg.apply_overlong_filtering,
        )

    @property
    def server(self) -> RecordServer:
        """Where the records come from."""
        return self._server

    @property
    def version(self) -> int:
        """The version of the weights that was published last."""
        return self._dispatcher.version

    def publish(self, version: int) -> None:
        """Tells the environments the version of the newest weights. Staleness is relative to it."""
        self._server.publish(version)
        self._dispatcher.version = version

    def stats(self) -> dict[str, int]:
        """The server's numbers, the number of stashed records, and how many groups were not used, by reason."""
        return {**self._server.stats(), "stashed_records": len(self._stash), **self._stash.counts()}

    async def generate(self, input_batch: GeneratorInput) -> GeneratorOutput:
        """Waits for as many trajectories as there are prompts, and returns them in the same order.

        A cancelled call takes nothing: its groups go to the next call. `TrajectoryUnusable` drops the unusable groups;
        the others go to the next call, too.
        """
        groups = await self._dispatcher.get(request_of(input_batch, self._group_size))
        used, wrong = _converted(input_batch, groups)
        if wrong is not None:
            self._dispatcher.put_back([group for group, rows in zip(groups, used, strict=True) if rows])
        for group, rows in zip(groups, used, strict=True):
            if wrong is None or not rows:
                group.release()
        if wrong is not None:
            raise wrong
        return self._output(input_batch, [row for rows in used for row in rows])

    def close(self) -> None:
        """Closes the records, which ends the environments. Safe to call twice."""
        self._server.close()

    def _output(self, batch: Mapping[str, Any], rows: list[Trajectory]) -> GeneratorOutput:
        responses, masks = [row.response_ids for row in rows], [row.loss_mask for row in rows]
        stops = [row.stop_reason for row in rows]
        rewards = [row.reward for row in rows]
        if self._zero_reward_on_non_stop:
            rewards = [reward if stop == "stop" else 0.0 for reward, stop in zip(rewards, stops, strict=True)]
        if self._overlong_filtering:
            masks = apply_overlong_filtering(masks, stops)
        # After a return to a checkpoint, trajectories may have later weights than the trainer: they are not stale.
        behind = [max(self.version - row.version, 0) for row in rows]
        metrics = get_rollout_metrics(responses, rewards, loss_masks=masks)
        metrics["rollway/staleness_mean"] = sum(behind) / len(behind)
        metrics["rollway/staleness_max"] = max(behind)
        return GeneratorOutput(
            prompt_token_ids=[row.prompt_ids for row in rows],
            response_ids=responses,
            rewards=rewards,
            loss_masks=masks,
            stop_reasons=stops,
            rollout_metrics=metrics,
            rollout_logprobs=_logprobs(batch, rows),
            trajectory_ids=batch.get("trajectory_ids"),
        )


def _converted(
    batch: Mapping[str, Any], groups: Sequence[Group]
) -> tuple[list[list[Trajectory]], TrajectoryUnusable | InvalidArgument | None]:
    """The rows of each group, none for an unusable one; and the error of the first unusable group."""
    made: list[list[Trajectory]] = []
    wrong: TrajectoryUnusable | InvalidArgument | None = None
    for group in groups:
        try:
            made.append([trajectory_of(record) for record in group.records])
        except (TrajectoryUnusable, InvalidArgument) as error:  # the latter: it cannot even be read
            made.append([])
            wrong = wrong or error
    try:
        _logprobs(batch, [row for rows in made for row in rows])
    except TrajectoryUnusable as error:
        made = [rows if all(row.logprobs is not None for row in rows) else [] for rows in made]
        wrong = wrong or error
    return made, wrong


def _logprobs(batch: Mapping[str, Any], rows: list[Trajectory]) -> list[list[float]] | None:
    """The log-probabilities of all rows, if SkyRL's sampling parameters ask for them; otherwise ``None``."""
    sampling = batch.get("sampling_params")
    if sampling is not None and sampling.get("logprobs") is None:
        return None
    logprobs = [row.logprobs for row in rows if row.logprobs is not None]
    if len(logprobs) == len(rows):
        return logprobs
    if sampling is None and not logprobs:
        return None
    raise TrajectoryUnusable(
        f"{len(rows) - len(logprobs)} of {len(rows)} trajectories came without inference_logprobs, and SkyRL asks for "
        "them. Let the environment send them, or set generator.sampling_params.logprobs=null"
    )
