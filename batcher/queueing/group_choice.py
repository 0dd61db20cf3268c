"""Which chunks of a job go into a batch to one replica, by their prefix groups."""

from uuid import UUID

from batcher.policy.hash_ring import HashRing
from batcher.queueing.buffered_chunk import BufferedChunk
from batcher.queueing.queue_levels import JobQueue


class GroupChoice:
    """Chooses the chunks of one batch to one replica."""

    __slots__ = ("_groups", "_replica_id", "_ring")

    def __init__(self, replica_id: str, ring: HashRing) -> None:
        """Choose for the replica; `ring` is that of its pool."""
        self._replica_id, self._ring = replica_id, ring
        self._groups: dict[UUID, int] = {}  # of each job, that of the run

    def begin_run(self, job: JobQueue, group: int) -> None:
        """Take chunks of this group first."""
        self._groups[job.job.job_id] = group

    def next_chunk(self, job: JobQueue, *, is_half_full: bool) -> BufferedChunk | None:
        """Return the next chunk of a job, or None to close a batch that is at least half full.

        The run of a group goes on; then groups of the replica follow. A batch is closed rather than
        mixed with a group of another replica.
        """
        head, groups = job.first(), job.groups
        if groups is None or not head.prefix_group:
            return head
        group = self._groups.get(job.job.job_id)
        if group is not None and (chunk := groups.first_of(group)) is not None:
            return chunk
        owned = groups.owned_by(self._replica_id, self._ring)
        if owned is None and group is not None and is_half_full:
            return None
        group = head.prefix_group if owned is None else owned
        self.begin_run(job, group)
        return groups.first_of(group)
