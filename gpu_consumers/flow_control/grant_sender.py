"""Sends the grants of one replica and class to the batchers of the class (topic `grants`)."""

from topics.clients.producer import PartitionSender
from topics.records.catalogue import GRANTS, grants_partition
from topics.records.codec import encode, kind_headers
from topics.records.records import ReplicaGrants


class GrantSender:
    """Sends records that each hold the whole state; one that finds no space is not needed."""

    def __init__(self, producer: PartitionSender, replica_id: str, job_class: str) -> None:
        self._producer = producer
        self._partition = grants_partition(job_class)
        self._key = f"{replica_id}:{job_class}".encode()
        self._headers = kind_headers(ReplicaGrants)

    def send(self, grants: ReplicaGrants) -> bool:
        """Send the record; return False if the partition has no space: a newer one follows."""
        if not self._producer.has_space(GRANTS.name, self._partition):
            return False
        self._producer.send(
            GRANTS.name,
            encode(grants),
            partition=self._partition,
            key=self._key,
            headers=self._headers,
        )
        return True
