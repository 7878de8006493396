"""NoOpInferenceClient: takes the place of SkyRL's inference engine, when the environment has its own.

Life-cycle calls (sleep, wake up, pause, weights) do nothing. Calls that would produce tokens raise `NoInferenceEngine`.
"""

from __future__ import annotations

from typing import Any, NoReturn

from skyrl.backends.skyrl_train.inference_servers.base import InferenceEngineInterface

from rollway.integrations.skyrl.errors import NoInferenceEngine


class NoOpInferenceClient(InferenceEngineInterface):
    """Satisfies SkyRL's `InferenceEngineInterface` without an engine.

    Args:
        model_name: What `model_name` says; nothing is loaded.

    >>> client = NoOpInferenceClient("some/model")
    >>> client.increment_weight_version()
    >>> client.weight_version
    1
    """

    def __init__(self, model_name: str = "external") -> None:
        self._model_name = model_name
        self._weight_version = 0

    @property
    def model_name(self) -> str:
        """The name that was given; nothing is loaded under it."""
        return self._model_name

    @property
    def weight_version(self) -> int:
        """How often the weights have changed since this process began."""
        return self._weight_version

    def increment_weight_version(self) -> None:
        """Counts a change of the weights. SkyRL calls it after every update."""
        self._weight_version += 1

    async def generate(self, input_batch: Any, model: str | None = None) -> NoReturn:
        """Raises: the environment generates."""
        self._refuse("generate")

    def get_endpoint_url(self) -> NoReturn:
        """Raises: there is no endpoint."""
        self._refuse("get_endpoint_url")

    async def chat_completion(self, request_payload: dict[str, Any]) -> NoReturn:
        """Raises: the environment generates."""
        self._refuse("chat_completion")

    async def render_chat_completion(self, request_payload: dict[str, Any]) -> NoReturn:
        """Raises: the environment renders its own prompts."""
        self._refuse("render_chat_completion")

    async def completion(self, request_payload: dict[str, Any]) -> NoReturn:
        """Raises: the environment generates."""
        self._refuse("completion")

    async def wake_up(self, *args: Any, **kwargs: Any) -> None:
        """Nothing sleeps."""

    async def sleep(self, *args: Any, **kwargs: Any) -> None:
        """Nothing holds memory."""

    async def init_weight_update_communicator(self, init_info: Any) -> None:
        """No weights are pushed; their version is published instead."""

    async def update_named_weights(self, request: Any) -> None:
        """No weights are pushed; their version is published instead."""

    async def teardown(self) -> None:
        """Nothing was set up."""

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> None:
        """There is no cache."""

    async def pause_generation(self) -> None:
        """The environment goes on; its records say with which weights they were made."""

    async def resume_generation(self) -> None:
        """Nothing was paused."""

    async def finish_session(self, session_id: str) -> None:
        """There are no sessions."""

    async def get_world_size(self) -> tuple[int, int]:
        """No inference workers: ``(0, 0)``."""
        return (0, 0)

    def __repr__(self) -> str:
        return f"<rollway.NoOpInferenceClient {self._model_name} version {self._weight_version}>"

    def _refuse(self, call: str) -> NoReturn:
        raise NoInferenceEngine(
            f"{call}() was called, but there is no inference engine: with generator.external.enabled=true the "
            "environment generates, and trajectories come from its records. Use AtroposSHMGenerator as the generator, "
            "or set generator.external.enabled=false to run SkyRL's own engines"
        )
