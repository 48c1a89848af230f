"""Merkle trees over what a dealer commits to: one short path to each recipient, not all n entries.

The shape is that of RFC 6962: nodes are paired from the left, an odd one goes up as it is and is
never paired with itself. Leaves, nodes and the root have labels of their own, and the root binds
the number of leaves, so no node passes for a leaf and no tree for one of another size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from privacy.errors import PeerError, Reason
from privacy.secagg.encoding import Label, hash_of


@dataclass(frozen=True)
class MerkleTree:
    """A tree over at least one leaf; each leaf is a hash under a label of its own, 32 bytes."""

    leaves: tuple[bytes, ...]

    @cached_property
    def root(self) -> bytes:
        """Return H("share-root", number of leaves, top node): 32 bytes."""
        return _root(len(self.leaves), self._levels[-1][0])

    def path(self, position: int) -> tuple[bytes, ...]:
        """Return the siblings of a leaf on the way up, lowest first.

        Args:
            position: Of the leaf, from 0.
        """
        siblings: list[bytes] = []
        for level in self._levels:
            sibling = position ^ 1
            if sibling < len(level):
                siblings.append(level[sibling])
            position //= 2
        return tuple(siblings)

    @cached_property
    def _levels(self) -> tuple[Sequence[bytes], ...]:
        levels: list[Sequence[bytes]] = [self.leaves]
        while len(levels[-1]) > 1:
            below = levels[-1]
            paired = [_node(below[at], below[at + 1]) for at in range(0, len(below) - 1, 2)]
            levels.append(paired + list(below[len(below) & ~1 :]))
        return tuple(levels)


def root_of_path(leaf: bytes, position: int, size: int, path: Sequence[bytes]) -> bytes:
    """Return the root of the tree of ``size`` leaves that a path leads to from one of them.

    Args:
        leaf: The leaf, hashed under its label.
        position: Its position, from 0, below ``size``.
        size: Leaves of the tree, known to the verifier and not taken from the sender.
        path: As ``MerkleTree.path`` gives it.

    Raises:
        PeerError: MALFORMED, the path is not as long as that leaf's.
    """
    node, left, width = leaf, list(path), size
    while width > 1:
        sibling = position ^ 1
        if sibling < width:
            if not left:
                raise PeerError(Reason.MALFORMED, "a Merkle path is too short")
            other = left.pop(0)
            node = _node(other, node) if position & 1 else _node(node, other)
        position //= 2
        width = (width + 1) // 2
    if left:
        raise PeerError(Reason.MALFORMED, "a Merkle path is too long")
    return _root(size, node)


def _node(left: bytes, right: bytes) -> bytes:
    return hash_of(Label.SHARE_NODE, left, right)


def _root(size: int, top: bytes) -> bytes:
    return hash_of(Label.SHARE_ROOT, size, top)
