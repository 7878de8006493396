"""GroupRequest: which trajectories one call of ``generate`` wants, read from SkyRL's input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from rollway import InvalidArgument


class OutputRow(NamedTuple):
    """One row of the output: a repetition of an instance."""

    instance_id: str
    repetition_id: int


@dataclass(frozen=True)
class GroupRequest:
    """The rows of one call, in their order.

    >>> request = GroupRequest("train", (OutputRow("7", 0), OutputRow("7", 1), OutputRow("9", 0), OutputRow("9", 1)))
    >>> [(group[0].instance_id, len(group)) for group in request.groups]
    [('7', 2), ('9', 2)]
    """

    phase: str
    rows: tuple[OutputRow, ...]

    @cached_property
    def groups(self) -> list[list[OutputRow]]:
        """The rows that follow one another and belong to one instance, until its repetitions begin again."""
        groups: list[list[OutputRow]] = []
        for row in self.rows:
            if groups and row.instance_id == groups[-1][0].instance_id and row != groups[-1][0]:
                groups[-1].append(row)
            else:
                groups.append([row])
        return groups

    def __str__(self) -> str:
        return f"{len(self.rows)} trajectories in {len(self.groups)} groups of phase '{self.phase}'"


def request_of(batch: Mapping[str, Any], group_size: int) -> GroupRequest:
    """The request of SkyRL's ``GeneratorInput``.

    Without trajectory ids, each ``group_size`` prompts in a row count as one group, with an invented name.
    """
    prompts, ids, metadata = batch["prompts"], batch.get("trajectory_ids"), batch.get("batch_metadata")
    if ids is None:
        rows = tuple(OutputRow(f"#{i // group_size}", i % group_size) for i in range(len(prompts)))
    else:
        rows = tuple(OutputRow(str(one.instance_id), int(one.repetition_id)) for one in ids)
    if not rows or len(rows) != len(prompts):
        raise InvalidArgument(f"generate() was asked for {len(prompts)} prompts with {len(rows)} trajectory ids")
    return GroupRequest(metadata.training_phase if metadata is not None else "train", rows)
