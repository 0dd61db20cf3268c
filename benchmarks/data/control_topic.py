"""A topic `control` with the states of many jobs."""

import uuid
from random import Random

from core.states import CloseReason
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.records.catalogue import CONTROL
from topics.records.codec import encode, kind_headers
from topics.records.records import JobControl
from topics.settings import KafkaSettings

_FLUSH_S = 600.0
_CLOSED_VERSION = 2**31 - 1


def fill_control(servers: str, count: int) -> None:
    """Create the topic and write the states of `count` jobs, every second of them closed."""
    settings = KafkaSettings(bootstrap_servers=servers)
    TopicAdmin(settings).create([CONTROL])
    producer = RecordProducer(settings, client_id="benchmark")
    random, headers = Random(1), kind_headers(JobControl)
    for number in range(count):
        job_id = uuid.UUID(bytes=random.randbytes(16), version=4)
        if number % 2:
            control = JobControl(job_id, _CLOSED_VERSION, closed=CloseReason.CANCELLED)
        else:
            control = JobControl(job_id, 1, paused=True, deadline_s=2e9, void_below=1)
        producer.send(CONTROL.name, encode(control), partition=0, key=job_id.bytes, headers=headers)
    producer.flush(_FLUSH_S)
    producer.close()
