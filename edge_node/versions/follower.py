"""Follow each job's version chain by broadcasts: replay what is missing, or take a checkpoint.

What the aggregator sends is held against the chain before anything is trained from it: a version
that does not continue the chain this site knows is refused (EQUIVOCATION). At every root the
replica is compared with the aggregator's, and only chunks that differ are fetched.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from edge_node import log
from edge_node.commands import WantedVersion
from edge_node.download import fetch, fetch_into
from edge_node.link import Link
from edge_node.rounds.contract import JobAtSite
from edge_node.versions.chunks import digests_of, fetch_differing, list_chunks
from edge_node.versions.kept import KeptVersions
from edge_node.versions.replica import Replica
from privacy.errors import PeerError, Reason
from tidegate.broadcast import Broadcast, ContentName, VersionLog
from tidegate.checkpoint import CHUNK_BYTES, Checkpoint, CheckpointLayout
from tidegate.outer_step import state_fields
from tidegate.replay import check_broadcast, layout_of, replays
from tidegate.version_chain import chain_start

_THREAD_BYTES = 1 << 18
"""Shorter sums are replayed on the spot: a hand-over to a thread costs more than it frees."""


@dataclass
class _Writing:
    """A job's version on its way to the disk: the newest that waits, and who writes."""

    waiting: Replica | None = None
    task: "asyncio.Task[None] | None" = None


@dataclass(frozen=True)
class _Route:
    """How to come to a version: from the replica or from a checkpoint, then by sums."""

    checkpoint: Broadcast | None
    sums: tuple[Broadcast, ...] = field(default=())


class VersionFollower:
    """The replicas of this site's jobs; one request a job at a time.

    Attributes:
        repaired: Chunks that were fetched anew since the start, because they differed at a root.
    """

    def __init__(self, link: Link, kept: KeptVersions) -> None:
        """Take whom to fetch from, and where versions are kept."""
        self._link = link
        self._kept = kept
        self._replicas: dict[str, Replica] = {}
        self._writing: dict[str, _Writing] = {}
        self.repaired = 0

    async def come_to(self, wanted: WantedVersion, job: JobAtSite) -> Replica:
        """Give the replica at a version; what came on the way there is checked.

        Raises:
            PeerError: EQUIVOCATION: it does not continue the chain that this site knows; REPLAY: it
                is older than what this site holds; WRONG_SHAPE, WRONG_DIGEST, MALFORMED,
                NOT_FINITE: what came is not what was announced, or is no model of the job.
        """
        check_broadcast(job.job_file, job.plan, job.spec, wanted.broadcast)
        replica = await self._replica(job)
        if replica is not None and replica.version > wanted.broadcast.version:
            raise PeerError(
                Reason.REPLAY,
                f"version {wanted.broadcast.version} was announced, and this site holds"
                f" {replica.version}",
            )
        if replica is not None and replica.version == wanted.broadcast.version:
            if replica.head != wanted.head:
                raise _not_the_chain(wanted.broadcast.version)
            return replica
        # Until it is there again, nobody relies on it: what raises below may leave it half-way.
        self._replicas.pop(job.job_id, None)
        route, heads = await self._route(wanted, job, replica)
        if route.checkpoint is not None:
            replica = await self._take(route.checkpoint, heads[0], job, replica)
        if replica is None:
            raise PeerError(Reason.MALFORMED, "the version log shows no way to the version")
        rooted = [b.version for b in route.sums if b.checkpoint is not None]
        for broadcast in route.sums:
            await self._replay(replica, broadcast, wanted)
            if rooted and broadcast.version == rooted[-1]:
                await self._compare(replica, broadcast)
        self._replicas[job.job_id] = replica
        self._write(replica)
        return replica

    def forget(self, job_id: str) -> Coroutine[Any, Any, None]:
        """Drop a job's versions; what is returned ends when they are off the disk."""
        self._replicas.pop(job_id, None)
        return self._remove(job_id)

    async def close(self) -> None:
        """Wait until what is on its way to the disk is there."""
        tasks = [writing.task for writing in self._writing.values() if writing.task is not None]
        self._writing.clear()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- the way to a version --------------------------------------------------------------------

    async def _route(
        self, wanted: WantedVersion, job: JobAtSite, replica: Replica | None
    ) -> tuple[_Route, tuple[bytes, ...]]:
        """Find the way, and check that it is on the chain.

        Returns:
            The way, and the head at its checkpoint where it begins with one.
        """
        broadcast, version = wanted.broadcast, wanted.broadcast.version
        before = chain_start(job.job_id) if version == 0 else None
        if replica is not None and replica.version == version - 1:
            before = replica.head
        if before is not None:
            if broadcast.head_after(before) != wanted.head:
                raise _not_the_chain(version)
            if replica is not None and broadcast.opened is not None:
                return _Route(None, (broadcast,)), ()
            if broadcast.checkpoint is not None:
                return _Route(broadcast), (wanted.head,)
        raw = await fetch(self._link, wanted.log.sha256, wanted.log.size)
        versions = VersionLog.from_bytes(raw)
        versions.check(job.job_id, broadcast, wanted.head)
        for one in versions.broadcasts:
            check_broadcast(job.job_file, job.plan, job.spec, one)
        self._check_own(versions, replica)
        route = _cheapest(versions, replica)
        begins = route.checkpoint
        return route, () if begins is None else (versions.head_at(begins.version),)

    def _check_own(self, versions: VersionLog, replica: Replica | None) -> None:
        """Hold what this site has against the log; say so where the log does not reach it."""
        if replica is None or replica.version < versions.first - 1:
            if versions.first:
                log.info("version chain taken as given", version=versions.last)
        elif versions.head_at(replica.version) != replica.head:
            raise _not_the_chain(replica.version)

    # --- what is fetched -------------------------------------------------------------------------

    async def _replay(self, replica: Replica, broadcast: Broadcast, wanted: WantedVersion) -> None:
        opened = broadcast.opened
        if opened is None:
            raise PeerError(Reason.MALFORMED, "a version without a sum cannot be replayed")
        packed = memoryview(bytearray(opened.packed.size))
        await fetch_into(self._link, opened.packed.sha256, packed)
        announced, announcement = broadcast.announcement, wanted.announcement
        if announced is not None and broadcast.version != wanted.broadcast.version:
            announcement = await fetch(self._link, announced.sha256, announced.size)
        if len(packed) < _THREAD_BYTES:
            replica.follow(broadcast, packed, announcement)
        else:
            await asyncio.to_thread(replica.follow, broadcast, packed, announcement)

    async def _compare(self, replica: Replica, broadcast: Broadcast) -> None:
        """Hold the replica against the root, and repair the chunks that differ."""
        name, own = broadcast.checkpoint, replica.checkpoint()
        if name is None:
            return
        held = await asyncio.to_thread(lambda: own.digests)
        if own.name == name:
            return
        digests = await list_chunks(self._link, name)
        file = bytearray().join(own.parts)
        count = await fetch_differing(self._link, digests, held, memoryview(file))
        replica.repair(file, digests)
        self.repaired += count
        facts = {"job": replica.job.job_id, "version": replica.version}
        log.warning("model repaired", **facts, chunks=count, of=len(digests))

    async def _take(
        self, broadcast: Broadcast, head: bytes, job: JobAtSite, replica: Replica | None
    ) -> Replica:
        """Fetch a version whole, but for chunks that the replica holds already."""
        name = broadcast.checkpoint
        if name is None:
            raise PeerError(Reason.MALFORMED, "a version without a root cannot be taken whole")
        layout = layout_of(job.job_file, job.plan, job.spec, broadcast)
        digests = await list_chunks(self._link, name)
        if name.size <= CHUNK_BYTES:
            file = bytearray(name.size)
            await fetch_differing(self._link, digests, (), memoryview(file))
        else:
            file = await self._arrive(job.job_id, name, digests, replica)
        taken = Replica.of_file(job, (broadcast.version, head), layout, file)
        taken.digests = digests
        return taken

    async def _arrive(
        self, job_id: str, name: ContentName, digests: tuple[bytes, ...], replica: Replica | None
    ) -> bytearray:
        """Fetch a large checkpoint by way of the disk: a restart goes on where it was."""
        room = self._kept.arriving(job_id, name.size)
        with memoryview(room) as file:
            held = await asyncio.to_thread(digests_of, file)
            own = None if replica is None else replica.checkpoint()
            if own is not None and own.size == name.size and held != digests:
                held = await asyncio.to_thread(_fill, file, own, held, digests)
            await fetch_differing(self._link, digests, held, file)
            content = bytearray(file)
        room.close()
        self._kept.arrived(job_id)
        return content

    # --- the disk --------------------------------------------------------------------------------

    async def _replica(self, job: JobAtSite) -> Replica | None:
        """Give what this site holds of a job, from memory or from before a restart."""
        if job.job_id in self._replicas:
            return self._replicas[job.job_id]
        writing = self._writing.get(job.job_id)
        if writing is not None and writing.task is not None:
            await writing.task
        kept = self._kept.newest(job.job_id)
        if kept is None:
            return None
        fields: tuple[str, ...] = ()
        if kept.version and job.job_file.strategy is not None and replays(job.job_file, job.plan):
            fields = state_fields(job.job_file.strategy.name, job.job_file.strategy.options)
        layout = CheckpointLayout(job.spec.length, fields, kept.announcement_bytes)
        try:
            file = await asyncio.to_thread(kept.read)
            return Replica.of_file(job, (kept.version, kept.head), layout, file)
        except (PeerError, OSError) as error:
            log.warning("kept model version is damaged", job=job.job_id, why=error)
            kept.path.unlink(missing_ok=True)
            return None

    def _write(self, replica: Replica) -> None:
        """Have the version put on the disk beside the training; of several that wait, the last."""
        writing = self._writing.setdefault(replica.job.job_id, _Writing())
        writing.waiting = replica
        if writing.task is None or writing.task.done():
            writing.task = asyncio.create_task(self._write_all(writing))

    async def _write_all(self, writing: _Writing) -> None:
        while writing.waiting is not None:
            replica, writing.waiting = writing.waiting, None
            where, file = (replica.version, replica.head), replica.checkpoint()
            announced = replica.layout.announcement_bytes
            try:
                await asyncio.to_thread(self._kept.put, replica.job.job_id, where, file, announced)
            except OSError as error:  # the disk is full: a restart downloads, nothing else is lost
                log.warning("model version not kept", job=replica.job.job_id, why=error)

    async def _remove(self, job_id: str) -> None:
        writing = self._writing.pop(job_id, None)
        if writing is not None and writing.task is not None:
            writing.waiting = None
            await writing.task
        await asyncio.to_thread(self._kept.forget, job_id)


def _cheapest(versions: VersionLog, replica: Replica | None) -> _Route:
    """Choose between the sums since the replica and the newest checkpoint with those after it."""
    sums: list[Broadcast] = []
    by_checkpoint: tuple[int, _Route] | None = None
    bytes_of_sums = 0
    for broadcast in reversed(versions.broadcasts):
        if by_checkpoint is None and broadcast.checkpoint is not None:
            cost = bytes_of_sums + broadcast.checkpoint.size
            by_checkpoint = cost, _Route(broadcast, tuple(reversed(sums)))
        if broadcast.opened is None:
            break
        sums.append(broadcast)
        bytes_of_sums += sum(name.size for name in broadcast.contents)
        if replica is not None and broadcast.version == replica.version + 1:
            if by_checkpoint is None or bytes_of_sums <= by_checkpoint[0]:
                return _Route(None, tuple(reversed(sums)))
            break
    if by_checkpoint is None:
        raise PeerError(Reason.MALFORMED, "the version log shows no checkpoint")
    return by_checkpoint[1]


def _not_the_chain(version: int) -> PeerError:
    return PeerError(
        Reason.EQUIVOCATION, f"version {version} does not continue the chain that this site knows"
    )


def _fill(
    file: memoryview, own: Checkpoint, held: tuple[bytes, ...], digests: tuple[bytes, ...]
) -> tuple[bytes, ...]:
    """Put the replica's chunks where they are the wanted ones; give what is held then."""
    found = list(held)
    for index, digest in enumerate(digests):
        if held[index] != digest and own.digests[index] == digest:
            begin = index * CHUNK_BYTES
            file[begin : begin + CHUNK_BYTES] = own.read(begin, CHUNK_BYTES)
            found[index] = digest
    return tuple(found)
