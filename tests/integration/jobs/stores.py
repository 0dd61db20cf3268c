"""What a process of the job system works on."""

from typing import NamedTuple

import sqlalchemy as sa

from storage.objects.local_object_store import LocalObjectStore
from topics.clients.producer import RecordProducer
from topics.settings import KafkaSettings


class Stores(NamedTuple):
    """The database, the object store and the log of a test."""

    engine: sa.Engine
    objects: LocalObjectStore
    producer: RecordProducer
    kafka: KafkaSettings
