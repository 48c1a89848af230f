"""Fetch a checkpoint chunk by chunk: only those that differ from what lies there, several at once.

Each chunk is checked by its own digest as it arrives, so a broken connection, or a restart of the
site, costs at most the chunks that were on their way.
"""

import asyncio
import hashlib

from edge_node.download import fetch, fetch_into
from edge_node.link import Link
from tidegate.broadcast import ContentName
from tidegate.checkpoint import CHUNK_BYTES, chunk_count, chunk_size, read_digests

_AT_ONCE = 8
"""Chunks under way: 8 MiB fill 1 Gb/s at 67 ms."""


async def list_chunks(link: Link, name: ContentName) -> tuple[bytes, ...]:
    """Fetch the digests of a checkpoint's chunks, and hold them against its root.

    Raises:
        PeerError: WRONG_DIGEST, or the aggregator's own reason.
    """
    count = chunk_count(name.size)
    if count == 1:
        return (name.sha256,)
    return read_digests(await fetch(link, name.sha256, len(name.sha256) * count), name)


def digests_of(file: memoryview) -> tuple[bytes, ...]:
    """Take the digests of a file's chunks."""
    return tuple(
        hashlib.sha256(file[begin : begin + CHUNK_BYTES]).digest()
        for begin in range(0, len(file), CHUNK_BYTES)
    )


async def fetch_differing(
    link: Link, digests: tuple[bytes, ...], held: tuple[bytes, ...], file: memoryview
) -> int:
    """Fetch the chunks that are not there yet into a file's buffer.

    Args:
        link: To the aggregator.
        digests: What the chunks must be.
        held: What they are; empty where nothing is known of the buffer.
        file: Of the checkpoint's length.

    Returns:
        How many chunks came.

    Raises:
        PeerError: A chunk is other bytes, or the aggregator's own reason.
    """
    known = held or (b"",) * len(digests)
    missing = [index for index, digest in enumerate(digests) if known[index] != digest]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def fetch_one(index: int) -> None:
        begin = index * CHUNK_BYTES
        async with gate:
            await fetch_into(
                link, digests[index], file[begin : begin + chunk_size(len(file), index)]
            )

    try:
        async with asyncio.TaskGroup() as tasks:
            for index in missing:
                tasks.create_task(fetch_one(index))
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    return len(missing)
