"""Searches the records, tables and objects of an installation for texts."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from cli.stack.services.embedded_postgres import binaries
from tests.support.stacks import Stack
from topics.records.catalogue import SHARED_TOPICS, pool_topics
from topics.tail_readers.topic_tail_reader import TopicTailReader


@dataclass(frozen=True, slots=True)
class Found:
    """The locations of one text."""

    topics: set[str] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)
    objects: set[str] = field(default_factory=set)  # keys


def search(stack: Stack, *texts: bytes) -> list[Found]:
    """Search everything once; return the locations of each text."""
    found = [Found() for _ in texts]
    pairs = list(zip(texts, found, strict=True))
    _search_topics(stack, pairs)
    _search_tables(stack, pairs)
    for key, path in stored_objects(stack):
        content = path.read_bytes()
        for text, its in pairs:
            if text in content:
                its.objects.add(key)
    return found


def _search_topics(stack: Stack, pairs: list[tuple[bytes, Found]]) -> None:
    """Search value, key and headers of every record."""
    kafka = stack.kafka
    of_pools = [topic for pool in stack.state.pools for topic in pool_topics(pool)]
    for topic in (*SHARED_TOPICS, *of_pools):
        tail = TopicTailReader(kafka, topic, client_id="test-search")
        for record in tail.read_to_end(30):
            fields = (record.value or b"", record.key or b"", *(v for _, v in record.headers))
            for text, its in pairs:
                if any(text in part for part in fields):
                    its.topics.add(topic.name)
        tail.close()


def _search_tables(stack: Stack, pairs: list[tuple[bytes, Found]]) -> None:
    """Search every row, also byte columns, which a dump shows as hexadecimal digits."""
    url = sa.make_url(stack.state.database_url).set(drivername="postgresql")
    command = [f"{binaries()}/pg_dump", "--data-only", url.render_as_string(hide_password=False)]
    dump = subprocess.run(command, check=True, timeout=60, capture_output=True).stdout
    table = ""
    for line in dump.splitlines():
        if line.startswith(b"COPY "):
            table = line.split()[1].decode().removeprefix("public.")
        for text, its in pairs:
            if text in line or text.hex().encode() in line:
                its.tables.add(table)


def stored_objects(stack: Stack) -> Iterator[tuple[str, Path]]:
    """Yield every object of the local store by its key, unfinished ones included."""
    root = stack.data / "objects"
    assert root.is_dir()
    for folder, _, names in os.walk(root):  # unlike `rglob` it ignores folders that disappear
        for path in (Path(folder, name) for name in names):
            yield str(path.relative_to(root)), path
