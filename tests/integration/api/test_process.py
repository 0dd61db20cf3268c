"""Goal: an API process needs constant memory, stops cleanly, and its crashes repeat no effect."""

import hashlib
import random
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import psutil
import pytest
import sqlalchemy as sa

from jobs.tables.jobs import jobs
from tenancy.api_keys import create_key
from tenancy.tenants import create_tenant
from tests.integration.api.answers import batch_body, file_id
from tests.integration.api.pipe import open_pipe
from tests.integration.api.processes import READY_S_MAX, ApiProcess, api_process
from tests.support.until import until
from topics.settings import KafkaSettings

MIB = 1024 * 1024
SIZE_BYTES = 64 * MIB
RESIDENT_BYTES_MAX = 32 * MIB
BLOCK = bytes(range(256)) * 4096  # one MiB
ENDS_S_MAX = 6.0  # a second of it is for requests in flight; Postgres would be waited for 8 s


@pytest.fixture
def secret(engine: sa.Engine) -> str:
    with engine.begin() as connection:
        return create_key(connection, create_tenant(connection, "one"), "test").secret


@pytest.mark.timeout(300)
def test_a_large_file_needs_constant_memory(
    kafka: KafkaSettings, secret: str, database_url: str, tmp_path: Path
) -> None:
    with api_process(kafka, database_url, tmp_path) as api, api.client(secret) as client:
        process = psutil.Process(api.process.pid)
        client.post("/v1/files", data={"purpose": "batch"}, files={"file": b"warm"})
        before = process.memory_info().rss
        head = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
        head += b'Content-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        most = before

        def form() -> Iterator[bytes]:
            nonlocal most
            yield head
            for _ in range(SIZE_BYTES // MIB):
                yield BLOCK
                most = max(most, process.memory_info().rss)
            yield b"\r\n--b--\r\n"

        kind = {"content-type": "multipart/form-data; boundary=b"}
        created = client.post("/v1/files", content=form(), headers=kind).json()
        assert created["bytes"] == SIZE_BYTES

        digest = hashlib.sha256()
        with client.stream("GET", f"/v1/files/{created['id']}/content") as answer:
            for data in answer.iter_raw():
                digest.update(data)
                most = max(most, process.memory_info().rss)
    assert digest.hexdigest() == hashlib.sha256(BLOCK * (SIZE_BYTES // MIB)).hexdigest()
    assert most - before < RESIDENT_BYTES_MAX


def test_shutdown_while_postgres_hangs(
    kafka: KafkaSettings, secret: str, database_url: str, tmp_path: Path
) -> None:
    limits = {"MILLRACE_API_SHUTDOWN_GRACE_S": "1"}
    with (
        open_pipe(database_url) as pipe,
        ThreadPoolExecutor(1) as threads,
        api_process(kafka, pipe.url, tmp_path, **limits) as api,
        api.client(secret) as client,
    ):
        pipe.stall()
        asking = threads.submit(client.get, "/v1/files")
        in_flight = "\nmillrace_api_requests_in_flight 2.0"  # that one and the look itself
        until(lambda: in_flight in client.get("/metrics").text)
        began_s = time.monotonic()
        api.process.terminate()
        assert api.process.wait(15) == 0, api.log.read_text()
        assert time.monotonic() - began_s < ENDS_S_MAX
        assert asking.result().status_code == 503


PATIENCE_S = 240.0
THREADS, KEYS, KILLS = 8, 30, 2
SLOW_COMMIT = """
CREATE FUNCTION slow_commit() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_sleep(2); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON jobs DEFERRABLE INITIALLY DEFERRED
FOR EACH ROW EXECUTE FUNCTION slow_commit();
"""


@pytest.fixture
def api(kafka: KafkaSettings, database_url: str, tmp_path: Path) -> Iterator[ApiProcess]:
    with api_process(kafka, database_url, tmp_path) as api:
        yield api


def new_secret(engine: sa.Engine) -> str:
    with engine.begin() as connection:
        return create_key(connection, create_tenant(connection, uuid.uuid4().hex), "test").secret


def job_count(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(jobs)) or 0


@dataclass
class Tally:
    """What the clients saw."""

    ids: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    statuses: Counter[int] = field(default_factory=Counter)
    deaths: int = 0
    changed: Counter[int] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)


def persist(client: httpx.Client, body: dict[str, object], key: str, tally: Tally) -> None:
    """Post until it is answered well, as a patient client does."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        assert time.monotonic() < deadline_s
        try:
            answer = client.post("/v1/batches", json=body, headers={"Idempotency-Key": key})
        except httpx.TransportError:
            tally.deaths += 1
            time.sleep(0.1)
            continue
        with tally.lock:
            tally.statuses[answer.status_code] += 1
            if answer.status_code == 200:
                tally.ids[key].add(answer.json()["id"])
                return
        assert answer.status_code == 409, answer.text
        time.sleep(0.02)


@pytest.mark.timeout(600)
def test_concurrent_retries_across_crashes_of_the_api(api: ApiProcess, engine: sa.Engine) -> None:
    secret, tally = new_secret(engine), Tally()
    with api.client(secret) as client:
        body = batch_body(file_id(client))
    names = [f"key-{n}" for n in range(KEYS)]
    running = threading.Event()

    def client_thread(seed: int) -> None:
        mine = random.Random(seed).sample(names, KEYS)
        with api.client(secret) as client:
            for key in mine:
                persist(client, body | {"metadata": {"key": key}}, key, tally)
                running.set()

    with ThreadPoolExecutor(THREADS) as threads:
        futures = [threads.submit(client_thread, seed) for seed in range(THREADS)]

        def has_progressed(target: int) -> bool:
            return len(tally.ids) >= target or all(future.done() for future in futures)

        for n in range(KILLS):
            target = (n + 1) * KEYS // (KILLS + 1)
            until(partial(has_progressed, target), timeout_s=PATIENCE_S)
            api.kill()
            api.start()
        for future in futures:
            future.result()

    assert job_count(engine) == KEYS
    assert {len(ids) for ids in tally.ids.values()} == {1}
    assert len(set.union(*tally.ids.values())) == KEYS
    assert tally.statuses[200] == THREADS * KEYS
    assert not [status for status in tally.statuses if status >= 500]
    assert tally.deaths > 0

    other = new_secret(engine)
    with api.client(secret) as client, api.client(other) as stranger:
        for key in names:
            changed = body | {"metadata": {"key": key + "!"}}
            answer = client.post("/v1/batches", json=changed, headers={"Idempotency-Key": key})
            assert answer.status_code == 422
        theirs = batch_body(file_id(stranger))
        for key in names[:10]:
            answer = stranger.post("/v1/batches", json=theirs, headers={"Idempotency-Key": key})
            assert answer.status_code == 200
    assert job_count(engine) == KEYS + 10


@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", ["Idempotency-Key", "x-stainless-retry-count"])
def test_a_crash_between_commit_and_response(api: ApiProcess, engine: sa.Engine, how: str) -> None:
    secret = new_secret(engine)
    with api.client(secret) as client:
        body = batch_body(file_id(client))
    with engine.begin() as connection:
        connection.execute(sa.text(SLOW_COMMIT))

    def first_try() -> None:
        with api.client(secret) as client, pytest.raises(httpx.TransportError):
            client.post("/v1/batches", json=body, headers={how: "0"})

    with ThreadPoolExecutor(1) as threads:
        lost = threads.submit(first_try)
        wait_for_commit(engine)
        api.kill()  # the commit goes on without it
        lost.result()
    api.start()
    tries, answer = 0, None
    with api.client(secret) as client:
        deadline_s = time.monotonic() + PATIENCE_S
        while answer is None or answer.status_code == 409:
            assert time.monotonic() < deadline_s
            tries += 1
            count = "0" if how == "Idempotency-Key" else str(tries)
            answer = client.post("/v1/batches", json=body, headers={how: count})
    assert answer.status_code == 200
    assert answer.headers["idempotent-replayed"] == "true"
    assert job_count(engine) == 1
    with engine.connect() as connection:
        found: uuid.UUID = connection.execute(sa.select(jobs.c.id)).scalar_one()
    assert answer.json()["id"] == f"batch_{found.hex}"


def wait_for_commit(engine: sa.Engine) -> None:
    """Wait until a transaction is at its end, in the trigger that makes commits slow."""
    asleep = sa.text("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'")

    def sleeps() -> object:
        with engine.connect() as connection:
            return connection.scalar(asleep)

    until(sleeps, timeout_s=READY_S_MAX)
