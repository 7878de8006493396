"""Answers: what environments have answered, and the caller was not given yet."""

from __future__ import annotations

from typing import Any

from rollway.vector_env.protocol import FAULT, LETTER, PARCEL

Said = tuple[list[dict[str, Any]], list[Any]]
"""Infos, and the parts of an observation that have no fixed size."""
_WRITTEN = LETTER | PARCEL | FAULT


class Answers(dict[int, int]):
    """By environment, in their order: the flags of answers that are taken. Beside them the letters that came along."""

    def __init__(self) -> None:
        super().__init__()
        self.said: dict[int, Said] = {}

    def is_unread(self, env: int) -> bool:
        """Whether something came along with an answer, and nobody has read it."""
        return bool(self.get(env, 0) & _WRITTEN) and env not in self.said

    def give(self, env: int) -> tuple[int, Said]:
        """The caller gets it."""
        return self.pop(env), self.said.pop(env, ([], []))
