"""`rollway play`: plays episodes with a saved policy, prints their returns, and draws the first as a GIF."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import gymnasium
from PIL import Image

from rollway.algorithms import Policy, checkpoints
from rollway.cli.console import console, plain, print_json
from rollway.errors import InvalidArgument, UnusableEnvironment

_WRONG_USAGE = 2
_MAX_SIDE = 480
_DEFAULT_FPS = 30


def show(run: Path, episodes: int, seed: int, gif: Path | None, max_steps: int, *, as_json: bool) -> int:
    """Plays, prints, and returns the exit status."""
    if not run.exists():
        return _refuse(f"there is no {str(run)!r}: give the log directory of a run, or its policy.pt")
    try:
        policy = Policy.load(checkpoints.newest(run) if run.is_dir() else run)
        env = policy.env.make()
        if gif is not None:
            env.close()
            if "rgb_array" not in (modes := env.metadata.get("render_modes", [])):
                return _refuse(f"{policy.env.name!r} renders no pictures: its render modes are {modes}")
            env = policy.env.make(render_mode="rgb_array")
    except (InvalidArgument, UnusableEnvironment) as error:
        return _refuse(str(error))
    out, returns = console(), []
    with env:
        for number in range(episodes):
            frames: list[Image.Image] | None = [] if gif is not None and number == 0 else None
            try:
                rewards = list(_episode(policy, env, seed + number, max_steps, frames))
            except gymnasium.error.DependencyNotInstalled as error:
                return _refuse(f"{policy.env.name!r} cannot render: {error}")
            returns.append(sum(rewards))
            if not as_json:
                cut = ", cut off by --max-steps" if len(rewards) == max_steps else ""
                out.print(f"episode {number + 1:>3}  return {returns[-1]:>10.2f}  {len(rewards):,} steps{cut}")
            if gif is not None and frames:
                _write(gif, frames, env.metadata.get("render_fps") or _DEFAULT_FPS)
    if as_json:
        print_json({"env": policy.env.name, "returns": returns, "mean": fmean(returns)})
    else:
        out.print(f"mean of {episodes}: {fmean(returns):.2f}")
        if gif is not None:
            out.print(plain(f"the first is in {gif}"))
    return 0


def _episode(
    policy: Policy, env: gymnasium.Env[Any, Any], seed: int, max_steps: int, frames: list[Image.Image] | None
) -> Iterator[float]:
    """Plays one, gives its rewards, and adds its pictures to ``frames``."""
    obs, _ = env.reset(seed=seed)
    _draw(env, frames)
    for _ in range(max_steps):
        obs, reward, terminated, truncated, _ = env.step(policy.act(obs))
        _draw(env, frames)
        yield float(reward)
        if terminated or truncated:
            return


def _draw(env: gymnasium.Env[Any, Any], frames: list[Image.Image] | None) -> None:
    if frames is not None:
        picture = Image.fromarray(env.render())  # type: ignore[arg-type] # an array, by its render mode
        picture.thumbnail((_MAX_SIDE, _MAX_SIDE))
        frames.append(picture.quantize())  # a third of the memory


def _write(path: Path, frames: list[Image.Image], fps: float) -> None:
    frames[0].save(path, "GIF", save_all=True, append_images=frames[1:], duration=1000 / fps, loop=0)


def _refuse(text: str) -> int:
    console(stderr=True).print(plain(f"rollway play: {' '.join(text.split())}", "red"), soft_wrap=True)
    return _WRONG_USAGE
