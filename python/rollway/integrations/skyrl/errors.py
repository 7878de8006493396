"""What goes wrong between an environment and SkyRL, in addition to what the transport raises."""

from __future__ import annotations

from rollway.errors import RollwayError, WaitTimeout


class TrajectoryMissing(RollwayError, LookupError):
    """A requested trajectory will never come: it was dropped, it is too old, or nothing in it is trained."""


class TrajectoryTimeout(WaitTimeout):
    """The requested trajectories did not come in time. Says what is missing, and which processes are attached."""


class StashFull(RollwayError):
    """There is no more room for trajectories that no call requests, and no requested one is among them."""


class TrajectoryUnusable(RollwayError, ValueError):
    """A trajectory came that SkyRL's format cannot hold without a loss."""


class NoInferenceEngine(RollwayError, RuntimeError):
    """A caller asked for tokens, but there is no inference engine here: the environment generates."""


class LaunchFailed(RollwayError, RuntimeError):
    """The trainer or an environment did not start. Says which, and how it ended."""
