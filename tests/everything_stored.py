"""Everything that an installation holds, to be searched: records, tables, objects."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

from cli.stack.postgres import binaries
from tests.stacks import Stack
from topics.catalogue import SHARED_TOPICS, pool_topics
from topics.settings import KafkaSettings
from topics.tail import TopicTail


def topics_with(stack: Stack, text: bytes) -> set[str]:
    """Return the topics with a record that holds a text in value, key or headers."""
    kafka = KafkaSettings(bootstrap_servers=stack.state.kafka_bootstrap_servers)
    of_pools = [topic for pool in stack.state.pools for topic in pool_topics(pool)]
    found = set()
    for topic in (*SHARED_TOPICS, *of_pools):
        tail = TopicTail(kafka, topic, client_id="test-search")
        for record in tail.read_to_end(30):
            said = (record.value or b"", record.key or b"", *(v for _, v in record.headers))
            if any(text in part for part in said):
                found.add(topic.name)
        tail.close()
    return found


def tables_with(stack: Stack, text: bytes) -> set[str]:
    """Return the tables with a row that holds a text, also as bytes or in JSON."""
    url = sa.make_url(stack.state.database_url).set(drivername="postgresql")
    command = [f"{binaries()}/pg_dump", "--data-only", url.render_as_string(hide_password=False)]
    dump = subprocess.run(command, check=True, timeout=60, capture_output=True).stdout
    found, table = set(), ""
    for line in dump.splitlines():
        if line.startswith(b"COPY "):
            table = line.split()[1].decode().removeprefix("public.")
        elif text in line or text.hex().encode() in line:
            found.add(table)
    return found


def objects_with(stack: Stack, text: bytes) -> set[str]:
    """Return the keys of the objects that hold a text."""
    return {key for key, path in stored_objects(stack) if text in path.read_bytes()}


def stored_objects(stack: Stack) -> Iterator[tuple[str, Path]]:
    """Yield every object of the local store by its key, unfinished ones included."""
    root = stack.data / "objects"
    assert root.is_dir()
    for path in root.rglob("*"):
        if path.is_file():
            yield str(path.relative_to(root)), path
