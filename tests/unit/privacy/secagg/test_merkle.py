"""Merkle commitments: every leaf opens at its own place in a tree of its own size, nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.errors import PeerError
from privacy.secagg.encoding import Label, hash_of
from privacy.secagg.merkle import MerkleTree, root_of_path
from tests.support import secagg_naive as naive


def leaves(count, name="leaf"):
    return tuple(naive.digest(name, number) for number in range(count))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 31, 129, 200])
def test_every_leaf_opens_at_its_place(size):
    tree = MerkleTree(leaves(size))
    for at, leaf in enumerate(tree.leaves):
        assert root_of_path(leaf, at, size, tree.path(at)) == tree.root
    assert max(len(tree.path(at)) for at in range(size)) == (size - 1).bit_length()


@given(st.integers(2, 40), st.data())
def test_a_leaf_opens_nowhere_else_and_in_no_other_size(size, data):
    tree = MerkleTree(leaves(size))
    at = data.draw(st.integers(0, size - 1))
    other = data.draw(st.integers(0, size - 1).filter(lambda place: place != at))
    path = tree.path(at)
    for place, width in ((other, size), (at, size + 1), (at, max(size - 1, at + 1, 2))):
        if (place, width) == (at, size):
            continue
        try:
            found = root_of_path(tree.leaves[at], place, width, path)
        except PeerError:
            continue
        assert found != tree.root


@given(st.integers(2, 20), st.data())
def test_a_bent_path_or_leaf_gives_another_root(size, data):
    tree = MerkleTree(leaves(size))
    at = data.draw(st.integers(0, size - 1))
    path = list(tree.path(at))
    step = data.draw(st.integers(0, len(path) - 1))
    path[step] = naive.digest("bent")
    assert root_of_path(tree.leaves[at], at, size, path) != tree.root
    assert root_of_path(naive.digest("bent"), at, size, tree.path(at)) != tree.root


def test_a_node_is_no_leaf_and_an_odd_leaf_is_not_paired_with_itself():
    four = MerkleTree(leaves(4))
    pairs = tuple(hash_of(Label.SHARE_NODE, four.leaves[at], four.leaves[at + 1]) for at in (0, 2))
    assert MerkleTree(pairs).root != four.root, "the root binds the number of leaves"
    three = MerkleTree(leaves(3))
    assert three.root != MerkleTree((*leaves(3), leaves(3)[-1])).root


@pytest.mark.parametrize("extra", [-1, 1])
def test_a_path_of_the_wrong_length_is_refused(extra):
    tree = MerkleTree(leaves(5))
    path = tree.path(1)
    bent = path[:extra] if extra < 0 else (*path, path[0])
    with pytest.raises(PeerError, match="malformed"):
        root_of_path(tree.leaves[1], 1, 5, bent)
