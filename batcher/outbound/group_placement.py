"""Places a batch at the replica that holds what it needs: its adapter, or its prompts' prefix.

The batches of an adapter keep to one replica by the same ring as prefix groups: to load an adapter
costs more than to compute a prefix.
"""

from batcher.policy.credits import CreditLedger, ReplicaCredit
from batcher.policy.hash_ring import hash_key
from batcher.policy.prefix_affinity import place_adapter, place_group
from batcher.queueing.group_choice import GroupChoice
from batcher.queueing.queue_levels import BatchKeyQueue
from batcher.queueing.queues import Queues


def place_batch(
    queues: Queues, ledger: CreditLedger, queue: BatchKeyQueue, best: ReplicaCredit, *, now_s: float
) -> tuple[ReplicaCredit, GroupChoice]:
    """Return the replica of the next batch of `queue`, and how its chunks are chosen.

    `best` is the replica that gets it without a prefix group or an adapter. Another one is chosen
    only if it is as free: no batch waits at a busy replica while another is idle.
    """
    key = queue.key
    ring = ledger.ring(key.pool, key.required_model)
    if key.base_version:
        rank = best.rank(now_s)
        replica_id = place_adapter(
            ring,
            hash_key(key.model_version.encode()),
            best.capacity.replica_id,
            is_free=lambda replica_id: ledger.is_as_free(replica_id, rank, now_s=now_s),
        )
        return ledger.replica(replica_id), GroupChoice(replica_id, ring)
    job = queues.next_job(queue)
    groups, first = job.groups, job.first().prefix_group
    if groups is None or not first:
        return best, GroupChoice(best.capacity.replica_id, ring)
    rank = best.rank(now_s)
    group, replica_id = place_group(
        ring,
        (first, groups.key(first)),
        best.capacity.replica_id,
        is_free=lambda replica_id: ledger.is_as_free(replica_id, rank, now_s=now_s),
        owned_by=lambda replica_id: groups.owned_by(replica_id, ring),
    )
    groups.record_run(first, group)
    choice = GroupChoice(replica_id, ring)
    choice.begin_run(job, group)
    return ledger.replica(replica_id), choice
