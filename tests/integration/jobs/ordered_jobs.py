"""Jobs whose prompts share prefixes, and the intake processes that validate and expand them."""

import json
import random
import threading
from collections.abc import Sequence
from itertools import groupby
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from core.clock import SystemClock
from core.object_names import order_prefix
from jobs.leasing.active_leases import ActiveLeases
from jobs.leasing.lease_queue import LeaseQueue
from jobs.recovery.re_emit import ReEmitter
from jobs.settings import IntakeSettings
from jobs.store.controls import append_file
from jobs.validation.append_validator import ROLE, AppendValidator
from jobs.validation.validation_process import ValidationProcesses
from jobs.validation.validator import LeasedValidation, Validator
from jobs.validation.verdicts import APPEND_DUE
from registry.models import add_model
from results.writer.day_partitions import DayPartitions
from results.writer.item_writer import ItemWriter
from storage.objects.object_store import write_object
from tests.integration.jobs.expansion_process import ExpansionProcess
from tests.integration.jobs.log_reader import chunks_by_partition
from tests.integration.jobs.rows import (
    add_file,
    add_job,
    add_tenant,
    job_row,
)
from tests.integration.jobs.stores import Stores
from tests.integration.results.outcomes import outcome
from tests.support.until import until
from topics.records.records import Chunk, Item

CHAT = "/v1/chat/completions"
PREFIXES = [f"{name}: " + f"{name} speaks of its own. " * 60 for name in "abcdef"]
COUNT = 600


def chat_line(custom_id: str, prefix: str, question: str, **fields: Any) -> bytes:
    messages = [{"role": "system", "content": prefix}, {"role": "user", "content": question}]
    body = {"model": "small", "messages": messages, "max_tokens": 64} | fields
    request = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}
    return json.dumps(request).encode()


def shuffled_lines(name: str, count: int = COUNT, *, questions: int = 10**9) -> list[bytes]:
    """Return lines whose prefixes take turns by chance; the last one has no newline."""
    chance = random.Random(name)
    return [
        chat_line(f"{name}-{n}", chance.choice(PREFIXES), f"question {n % questions}")
        for n in range(count)
    ]


class Site:
    """Jobs that are validated and expanded by several intake processes."""

    def __init__(self, stores: Stores, processes: ValidationProcesses) -> None:
        self.engine, self.objects, self.producer, self.kafka = stores
        self.processes = processes
        self.started: list[ExpansionProcess] = []
        self.lines: list[bytes] = []
        with self.engine.begin() as connection:
            self.tenant_id = add_tenant(connection)
            add_model(
                connection,
                "small",
                "1",
                pool="pool-small",
                engine="simulated",
                endpoints=(CHAT,),
            )

    def validation(self, role: str, **settings: Any) -> LeasedValidation:
        leases = ActiveLeases(self.engine, role=role, holder="v", ttl_s=60)
        given = IntakeSettings(**settings)
        return LeasedValidation(self.objects, leases, given, threading.Event(), self.processes)

    def add(self, lines: Sequence[bytes], **columns: Any) -> UUID:
        self.lines = [*lines]
        content = b"\n".join(lines)
        write_object(self.objects, "files/in", content)
        given = {"endpoint": CHAT, "input_key": "files/in", "input_bytes": len(content)}
        with self.engine.begin() as connection:
            return add_job(connection, self.tenant_id, **(given | columns))

    def validate(self, **settings: Any) -> None:
        validator = Validator(self.engine, self.validation("intake", **settings), SystemClock())
        validator.claim()
        until(lambda: not any(validator._running))
        validator.close()

    def job(self, lines: Sequence[bytes], **columns: Any) -> UUID:
        """Add a job and validate it."""
        job_id = self.add(lines, **columns)
        self.validate()
        assert self.row(job_id).state == "in_progress"
        return job_id

    def append(self, job_id: UUID, lines: Sequence[bytes]) -> None:
        content = b"\n".join(lines)
        self.lines += lines
        with self.engine.begin() as connection:
            file = add_file(connection, self.tenant_id, size_bytes=len(content))
            append_file(connection, self.tenant_id, job_id, file.id)
        write_object(self.objects, file.object_key, content)
        validation = self.validation(ROLE)
        queue = LeaseQueue(self.engine, validation.leases, APPEND_DUE, SystemClock())
        AppendValidator(self.engine, queue, validation).run_once()

    def row(self, job_id: UUID) -> sa.Row[Any]:
        with self.engine.begin() as connection:
            return job_row(connection, job_id)

    def start(self, holder: str = "a") -> ExpansionProcess:
        self.started.append(ExpansionProcess(self.engine, self.objects, self.producer, holder))
        self.started[-1].claim()
        return self.started[-1]

    def emitter(self, process: ExpansionProcess) -> ReEmitter:
        return ReEmitter(self.engine, self.objects, self.producer, process.leases)

    def write_rows(self, job_id: UUID, indexes: Sequence[int], **fields: Any) -> None:
        rows = {job_id: [outcome(n, custom_id=self.custom_id(n), **fields) for n in indexes]}
        ItemWriter(self.engine, DayPartitions(self.engine)).write(rows)

    def custom_id(self, index: int) -> str:
        custom_id: str = json.loads(self.lines[index])["custom_id"]
        return custom_id

    def chunks(self) -> list[Chunk]:
        """Return the chunks on the log in the order of their positions; repeats follow."""
        found = [c for chunks in chunks_by_partition(self.kafka).values() for c in chunks]
        return sorted(found, key=lambda chunk: (chunk.position is None, chunk.position or 0))

    def emitted(self) -> list[Item]:
        return [item for chunk in self.chunks() for item in chunk.items]

    def prefix(self, item: Item) -> str:
        line = json.loads(self.lines[item.index])
        assert item.custom_id == line["custom_id"]
        return str(line["body"]["messages"][0]["content"])

    def order_objects(self, job_id: UUID) -> list[str]:
        return sorted(found.key for found in self.objects.list(order_prefix(job_id)))


def assert_in_groups(site: Site, items: Sequence[Item]) -> None:
    """Assert that the items of each prefix are neighbours, and have the same group."""
    runs = [prefix for prefix, _ in groupby(items, key=site.prefix)]
    assert len(runs) == len(set(runs))
    groups = [group for group, _ in groupby(items, key=lambda item: item.prefix_group)]
    assert len(groups) == len(set(groups)) == len(runs)
    assert 0 not in groups
