"""What goes wrong between an environment and SkyRL, beyond what the transport itself raises.

```text
RollwayError
├── TrajectoryMissing (LookupError)      a trajectory that was asked for will never come: dropped, too old, untrainable
├── TrajectoryTimeout (WaitTimeout)      it did not come in time; says what is missing and who is attached
├── StashFull                            only trajectories come that nobody asks for
├── TrajectoryUnusable (ValueError)      it came, and SkyRL has no place for what it holds
├── NoInferenceEngine (RuntimeError)     somebody asked the engine that does not exist to generate
└── LaunchFailed (RuntimeError)          one side of a launch did not come up; says which, and how it ended
```
"""

from __future__ import annotations

from rollway.errors import RollwayError, WaitTimeout


class TrajectoryMissing(RollwayError, LookupError):
    """The environment said that this trajectory will never come, or it is too old, or has nothing to train on."""


class TrajectoryTimeout(WaitTimeout):
    """The trajectories that were asked for did not come in time."""


class StashFull(RollwayError):
    """There is no more room for trajectories that nobody asks for, and none of those asked for is among them."""


class TrajectoryUnusable(RollwayError, ValueError):
    """A trajectory cannot be put into SkyRL's terms without losing something."""


class NoInferenceEngine(RollwayError, RuntimeError):
    """There is no inference engine here: the environment generates."""


class LaunchFailed(RollwayError, RuntimeError):
    """One side did not come up."""
