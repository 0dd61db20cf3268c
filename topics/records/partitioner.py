"""Where a record goes: shuffle shards for requests, a stable hash for everything else.

A tenant owns `SHARD_SIZE` of the n partitions of a class, chosen by rendezvous hashing of model
and tenant (Thaler and Ravishankar, 1998). So one tenant's flood fills only its own shard, and two
tenants hardly ever share all of theirs (AWS Builders' Library, "Workload isolation using
shuffle-sharding").
"""

from functools import lru_cache
from hashlib import blake2b
from uuid import UUID

SHARD_SIZE = 2
"""Partitions that a (model, tenant) pair owns."""


@lru_cache(maxsize=4096)
def shuffle_shard(model: str, tenant_id: UUID, partition_count: int) -> tuple[int, ...]:
    """Return the partitions of (model, tenant), best first; stable while the count is."""
    key = model.encode() + b"\0" + tenant_id.bytes
    ranked = sorted(range(partition_count), key=lambda p: _score(key, p), reverse=True)
    return tuple(ranked[:SHARD_SIZE])


def request_partition(model: str, tenant_id: UUID, sequence: int, partition_count: int) -> int:
    """Return the partition of the `sequence`-th record of (model, tenant): its shard in turn."""
    shard = shuffle_shard(model, tenant_id, partition_count)
    return shard[sequence % len(shard)]


def job_partition(job_id: UUID, partition_count: int) -> int:
    """Return the one partition that judges a job: ids are random, so their low bits spread."""
    return job_id.int % partition_count


def _score(key: bytes, partition: int) -> bytes:
    return blake2b(key, digest_size=8, salt=b"%d" % partition).digest()
