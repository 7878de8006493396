"""FetchTree: from which node each node of a cluster fetches the learner's weights. Plain Python, without Ray.

The learner is the root, and gives each version to at most ``fan_out`` nodes, which give it to as many each. A node that
joins disturbs no other node. When a node leaves, the nodes that fetched from it move, and at most one other; the tree
becomes no deeper.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from rollway.errors import InvalidArgument

N = TypeVar("N", bound=Hashable)


class FetchTree(Generic[N]):
    """Who fetches from whom: a tree with the learner, ``None``, as its root and at most ``fan_out`` children per node.

    Not for several threads at once.

    Args:
        fan_out: How many nodes fetch from the learner, and from each node, at most.

    >>> tree = FetchTree(fan_out=2)
    >>> [tree.join(node) for node in "abcde"]
    [None, None, 'a', 'a', 'b']
    >>> tree.leave("a")
    {'c': None, 'd': 'c'}
    """

    def __init__(self, fan_out: int) -> None:
        if fan_out < 1:
            raise InvalidArgument(f"fan_out = {fan_out} is out of range: at least 1")
        self.fan_out = fan_out
        self._parents: dict[N, N | None] = {}
        self._children: dict[N | None, list[N]] = {None: []}

    def __len__(self) -> int:
        return len(self._parents)

    def __contains__(self, node: object) -> bool:
        return node in self._parents

    def parent(self, node: N) -> N | None:
        """Whom the node fetches from; ``None`` is the learner. Raises `KeyError` for a node that did not join."""
        return self._parents[node]

    def children(self, node: N | None) -> list[N]:
        """Who fetches from the node, or from the learner (``None``)."""
        return list(self._children[node])

    def depth(self) -> int:
        """How often a version is sent on, at most, until the last node has it."""
        return len(self._levels()) - 1

    def join(self, node: N) -> N | None:
        """Adds a node and says whom it fetches from: the node nearest to the learner that has room.

        A node that is here already stays where it is.
        """
        if node is None:
            raise InvalidArgument("None is the learner, which does not join: give the node a name")
        if node not in self._parents:
            self._children[node] = []
            self._attach(node, self._room())
        return self._parents[node]

    def leave(self, node: N) -> dict[N, N | None]:
        """Removes a node, and says which nodes fetch from another one now, and from which.

        One of the nodes that fetched from it takes its place, and the others fetch from that one. Where none has room
        for the others, the last leaf takes the place. No other node moves. A node that did not join is no error.
        """
        if node not in self._parents:
            return {}
        place, orphans = self._parents[node], self._children[node]
        moved: dict[N, N | None] = {}
        if orphans:
            rooms = [orphan for orphan in orphans if len(self._children[orphan]) + len(orphans) - 1 <= self.fan_out]
            last = next(node for node in reversed(self._levels()[-1]) if node is not None)  # a leaf
            heir = rooms[0] if rooms else last
            moved[heir] = place  # first, so that those that are redirected in this order find it connected
            moved |= {orphan: heir for orphan in orphans if orphan != heir}
        for mover in moved:
            self._children[self._parents[mover]].remove(mover)
        del self._parents[node], self._children[node]
        self._children[place].remove(node)
        for mover, parent in moved.items():
            self._attach(mover, parent)
        return moved

    def _attach(self, node: N, parent: N | None) -> None:
        self._parents[node] = parent
        self._children[parent].append(node)

    def _levels(self) -> list[list[N | None]]:
        """The learner, and the nodes by their distance from it."""
        levels: list[list[N | None]] = [[None]]
        while below := [child for node in levels[-1] for child in self._children[node]]:
            levels.append(list(below))
        return levels

    def _room(self) -> N | None:
        """The node nearest to the learner that has room."""
        return next(node for level in self._levels() for node in level if len(self._children[node]) < self.fan_out)
