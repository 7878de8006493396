"""FetchTree: depth, children, circles, and who moves when nodes join and leave."""

import random

import pytest

from rollway.errors import InvalidArgument
from rollway.integrations.ray.weight_tree import FetchTree


def parents(tree, nodes):
    return {node: tree.parent(node) for node in nodes}


def check(tree, nodes):
    """Every node reaches the learner, and none has too many children."""
    for node in nodes:
        seen = set()
        while node is not None:
            assert node not in seen, "a circle"
            seen.add(node)
            node = tree.parent(node)
    for node in [None, *nodes]:
        assert len(tree.children(node)) <= tree.fan_out
        assert all(tree.parent(child) == node for child in tree.children(node))
    assert len(tree) == len(nodes)


@pytest.mark.parametrize(("fan_out", "nodes", "depth"), [(1, 5, 5), (2, 2, 1), (2, 3, 2), (2, 14, 3), (8, 100, 3)])
def test_nodes_that_join_fill_the_tree_level_by_level(fan_out, nodes, depth):
    tree = FetchTree(fan_out)
    assert tree.depth() == 0
    for node in range(nodes):
        tree.join(node)
    check(tree, range(nodes))
    assert tree.depth() == depth


def test_a_node_that_joins_moves_no_other_and_joins_once():
    tree = FetchTree(2)
    for node in range(30):
        before = parents(tree, range(node))
        assert tree.join(node) == tree.join(node)
        assert parents(tree, range(node)) == before


def test_when_a_leaf_leaves_nobody_moves_and_its_place_is_taken_next():
    tree = FetchTree(2)
    for node in range(6):
        tree.join(node)
    parent = tree.parent(2)
    assert tree.leave(2) == {}
    assert 2 not in tree and tree.join("new") == parent


@pytest.mark.parametrize("fan_out", [1, 2, 3, 8])
def test_the_children_of_a_node_that_leaves_move_and_one_leaf_at_most(fan_out):
    dice = random.Random(fan_out)
    tree, nodes = FetchTree(fan_out), []
    for step in range(400):
        if not nodes or dice.random() < 0.55:
            nodes.append(step)
            tree.join(step)
        else:
            leaves = nodes.pop(dice.randrange(len(nodes)))
            before, orphans, depth = parents(tree, nodes), tree.children(leaves), tree.depth()
            others = [node for node in nodes if node not in orphans and tree.children(node)]
            moved = tree.leave(leaves)
            assert moved.keys() >= set(orphans) and len(moved) <= len(orphans) + 1
            assert not moved.keys() & set(others), "it had children, and lost its parent"
            assert parents(tree, nodes) == {**before, **moved}
            assert tree.depth() <= depth
        check(tree, nodes)


def test_only_the_children_move_where_one_of_them_has_room_for_the_others():
    tree = FetchTree(3)
    for node in range(12):
        tree.join(node)
    assert tree.leave(0) == {4: 3, 5: 3, 3: None}


def test_what_makes_no_sense_is_refused_or_ignored():
    with pytest.raises(InvalidArgument, match="fan_out = 0 is out of range: at least 1"):
        FetchTree(0)
    tree = FetchTree(2)
    with pytest.raises(InvalidArgument, match="None is the learner"):
        tree.join(None)
    with pytest.raises(KeyError):
        tree.parent("nobody")
    assert tree.leave("nobody") == {}
