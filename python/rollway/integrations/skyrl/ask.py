"""Ask: which trajectories one call of ``generate`` wants. Reads SkyRL's input; knows nothing of records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from rollway import InvalidArgument


class Place(NamedTuple):
    """One row of the output: a repetition of an instance."""

    instance_id: str
    repetition_id: int


@dataclass(frozen=True)
class Ask:
    """The places of one call, in their order.

    >>> ask = Ask("train", (Place("7", 0), Place("7", 1), Place("9", 0), Place("9", 1)))
    >>> [(group[0].instance_id, len(group)) for group in ask.groups]
    [('7', 2), ('9', 2)]
    """

    phase: str
    places: tuple[Place, ...]

    @cached_property
    def groups(self) -> list[list[Place]]:
        """The places that follow one another and belong to one instance, until its repetitions begin again."""
        groups: list[list[Place]] = []
        for place in self.places:
            if groups and place.instance_id == groups[-1][0].instance_id and place != groups[-1][0]:
                groups[-1].append(place)
            else:
                groups.append([place])
        return groups

    def __str__(self) -> str:
        return f"{len(self.places)} trajectories in {len(self.groups)} groups of phase '{self.phase}'"


def ask_of(batch: Mapping[str, Any], group_size: int) -> Ask:
    """What SkyRL's ``GeneratorInput`` asks for.

    Without trajectory ids, the prompts are taken for groups of ``group_size`` in a row, with made-up names.
    """
    prompts, ids, metadata = batch["prompts"], batch.get("trajectory_ids"), batch.get("batch_metadata")
    if ids is None:
        places = tuple(Place(f"#{i // group_size}", i % group_size) for i in range(len(prompts)))
    else:
        places = tuple(Place(str(one.instance_id), int(one.repetition_id)) for one in ids)
    if not places or len(places) != len(prompts):
        raise InvalidArgument(f"generate() was asked for {len(prompts)} prompts with {len(places)} trajectory ids")
    return Ask(metadata.training_phase if metadata is not None else "train", places)
