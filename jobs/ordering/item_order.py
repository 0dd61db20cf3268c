"""Orders the items of a file by shared prefixes of their prompts. Pure.

A depth-first walk of the tree of prefixes, as in BatchLLM (arXiv:2412.03594) and BlendServe
(arXiv:2411.16102): items with the same prefix are neighbours, and the subtree with the most
predicted output for each prompt token that no neighbour has comes first. Inside a group the longest
predicted output comes first, then the order of the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np

from core.limits import CHUNK_ITEMS_MAX

Ints: TypeAlias = np.ndarray[Any, np.dtype[Any]]

ITEMS_MIN: Final = 2 * CHUNK_ITEMS_MAX
"""A smaller file is read in one piece by whoever executes it."""

SAVED_SHARE_MIN: Final = 0.1
"""Share of the prompt tokens that the order must save more than the file's own."""

FILE_BYTES_MAX: Final = 1024**3
"""Bytes of an ordered file at most: its copy takes 8 sequential reads, in a thread of intake."""


@dataclass(frozen=True, slots=True)
class FileItems:
    """The items of a file, in its order."""

    prefixes: Ints  # hash of each prefix by item and level; 0: the prompt is shorter
    prompts: Ints  # tokens
    outputs: Ints  # predicted tokens
    sizes: Ints  # bytes of the line


@dataclass(frozen=True, slots=True, eq=False)
class ItemOrder:
    """An order of the items of a file that differs from that of the file."""

    positions: Ints  # of each item in the order
    groups: Ints  # number of each item's prefix group, from 1; 0: it shares no prefix
    sizes: Ints  # bytes of each item's line
    saved_tokens: int  # prompt tokens that a neighbour has, beyond those in the file's own order

    @property
    def item_count(self) -> int:
        """Items of the file."""
        return len(self.positions)

    def sequence(self) -> Ints:
        """Return the items in emission order."""
        sequence = np.empty(len(self.positions), dtype=np.int32)
        sequence[self.positions] = np.arange(len(self.positions), dtype=np.int32)
        return sequence


def find_order(items: FileItems, level_tokens: Sequence[int]) -> ItemOrder | None:
    """Return the order of the items, or None if it saves less than `SAVED_SHARE_MIN`.

    `level_tokens` are the tokens of the prefixes of each level, rising.
    """
    count = len(items.prompts)
    if count < ITEMS_MIN or items.sizes.sum(dtype=np.int64) > FILE_BYTES_MAX:
        return None
    levels = range(len(level_tokens))
    tokens = np.array([0, *level_tokens], dtype=np.int64)
    rows = np.lexsort([items.prefixes[:, level] for level in reversed(levels)]).astype(np.int32)
    shared = _levels_shared_with_previous(items.prefixes, rows)
    in_file = _levels_shared_with_previous(items.prefixes, None)
    saved = int(tokens[shared].sum()) - int(tokens[in_file].sum())
    if saved < SAVED_SHARE_MIN * max(1, int(items.prompts.sum(dtype=np.int64))):
        return None
    ranks = _node_ranks(items, rows, shared, tokens)
    walk = np.lexsort((rows, -items.outputs[rows].astype(np.int64), *reversed(ranks)))
    positions = np.empty(count, dtype=np.int32)
    positions[rows[walk]] = np.arange(count, dtype=np.int32)
    groups = np.zeros(count, dtype=np.int32)
    groups[rows[walk]] = _group_numbers(ranks, _group_levels(shared, tokens), _depths(shared), walk)
    return ItemOrder(positions, groups, items.sizes.copy(), saved)


def _levels_shared_with_previous(prefixes: Ints, rows: Ints | None) -> Ints:
    """Return for each row how many levels of its prefixes are those of the row before."""
    shared = np.zeros(len(prefixes), dtype=np.int8)
    is_same = np.ones(len(prefixes) - 1, dtype=bool)
    for level in range(prefixes.shape[1]):
        column = prefixes[:, level] if rows is None else prefixes[rows, level]
        is_same &= (column[1:] == column[:-1]) & (column[1:] != 0)
        shared[1:] += is_same
    return shared


def _depths(shared: Ints) -> Ints:
    """Return for each row how many levels of its prefixes any other row has."""
    depths: Ints = np.maximum(shared, np.append(shared[1:], np.int8(0)))
    return depths


def _node_ranks(items: FileItems, rows: Ints, shared: Ints, tokens: Ints) -> list[Ints]:
    """Return for each level and row the rank of its node among all of the level.

    Rows that share no prefix of a level have the rank -1 in it, so that they are neighbours, too;
    on the first level they are one node like the others.
    """
    depths = _depths(shared)
    outputs = items.outputs[rows].astype(np.float64)
    uncached = np.maximum(items.prompts[rows].astype(np.int64) - tokens[shared], 1)
    ranks = []
    for level in range(len(tokens) - 1):
        is_shared = depths > level
        if level and not is_shared.any():
            break
        nodes = np.cumsum(shared <= level, dtype=np.int32)  # 0: of rows that share nothing
        nodes[~is_shared] = 0
        count = int(nodes.max()) + 1
        density = np.bincount(nodes, outputs, count) / np.maximum(
            np.bincount(nodes, uncached, count), 1
        )
        first = np.full(count, len(rows), dtype=np.int32)
        np.minimum.at(first, nodes, rows)
        rank = np.empty(count, dtype=np.int32)
        rank[np.lexsort((first, -density))] = np.arange(count, dtype=np.int32)
        if level:
            rank[0] = -1
        ranks.append(rank[nodes])
    return ranks


def _group_levels(shared: Ints, tokens: Ints) -> Ints:
    """Return for each row the level whose nodes are the groups of its tree.

    It is the shortest prefix that saves half of what the best one does, because what its items
    really share is up to twice as long. So a few items with a longer prefix in common do not divide
    the group of a prefix that many have.
    """
    trees = np.cumsum(shared == 0, dtype=np.int32) - 1
    count = int(trees[-1]) + 1
    gains = np.stack(
        [
            np.bincount(trees, shared > level, count) * tokens[level + 1]
            for level in range(len(tokens) - 1)
        ]
    )
    levels: Ints = (2 * gains >= gains.max(axis=0)).argmax(axis=0).astype(np.int8)
    levels = levels[trees]
    return levels


def _group_numbers(ranks: Sequence[Ints], group_levels: Ints, depths: Ints, walk: Ints) -> Ints:
    """Return the group number of each row in the order of `walk`."""
    levels = group_levels[walk]
    is_new = np.zeros(len(walk), dtype=bool)
    is_new[0] = True
    for level, rank in enumerate(ranks):
        walked = np.where(levels >= level, rank[walk], -1)
        is_new[1:] |= walked[1:] != walked[:-1]
    is_grouped = depths[walk] > 0
    numbers = np.cumsum(is_new & is_grouped, dtype=np.int32)
    numbers[~is_grouped] = 0
    return numbers
