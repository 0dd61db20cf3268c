"""Chooses partitions: shuffle shards for requests, the job id for everything else.

Each (pool, tenant) pair uses `SHARD_SIZE` of a topic's partitions, chosen by rendezvous hashing
(Thaler and Ravishankar, 1998). A tenant's flood fills only its own shard, and two tenants rarely
share all of theirs (AWS Builders' Library, "Workload isolation using shuffle-sharding"). A pool is
what a name means: a model has many spellings (`name@version` with any number of digits, aliases),
and with a shard for each a tenant would reach every partition.
"""

from functools import lru_cache
from hashlib import blake2b
from uuid import UUID

SHARD_SIZE = 2
"""Partitions of one (pool, tenant) pair."""


@lru_cache(maxsize=4096)
def shuffle_shard(pool: str, tenant_id: UUID, partition_count: int) -> tuple[int, ...]:
    """Return the partitions of (pool, tenant), best first; a constant for each partition count."""
    key = pool.encode() + b"\0" + tenant_id.bytes
    ranked = sorted(range(partition_count), key=lambda p: _score(key, p), reverse=True)
    return tuple(ranked[:SHARD_SIZE])


def request_partition(pool: str, tenant_id: UUID, sequence: int, partition_count: int) -> int:
    """Return the partition of the `sequence`-th record of (pool, tenant), round robin."""
    shard = shuffle_shard(pool, tenant_id, partition_count)
    return shard[sequence % len(shard)]


def job_partition(job_id: UUID, partition_count: int) -> int:
    """Return the partition of a job's results: ids are random, so their low bits spread evenly."""
    return job_id.int % partition_count


def _score(key: bytes, partition: int) -> bytes:
    return blake2b(key, digest_size=8, salt=b"%d" % partition).digest()
