"""Goal: commits that a failover lost stop all roles until `millrace recover` has run."""

import base64
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from core.commit_watermark import GRACE_S, CommitsLostError, CommitWatch
from core.secret_keys import KEY_BYTES
from jobs import __main__ as intake_role
from jobs.watermark_publisher import WatermarkPublisher
from results.__main__ import run_finaliser, run_writer
from results.rebuilding.database_restore import recover
from results.webhooks import __main__ as webhooks
from storage.postgres.watermark_row import (
    DatabaseWatermark,
    commit_watermark,
    raise_if_commits_lost,
)
from tests.integration.results.outcomes import execute
from tests.support.clock import ManualClock
from tests.support.until import until
from topics.clients.producer import RecordProducer
from topics.errors import KafkaUnavailableError
from topics.settings import KafkaSettings
from topics.tail_readers.commit_watermarks import CommitWatermarkReader, raise_if_log_says_lost
from topics.tail_readers.job_controls import JobControlReader

RunRole = Callable[[Mapping[str, str], threading.Event], None]


class Intake:
    """The part of an intake process that publishes the watermark."""

    def __init__(self, engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer) -> None:
        self.engine, self.clock = engine, ManualClock()
        self.reader = CommitWatermarkReader(kafka, client_id="test-intake")
        self.publisher = WatermarkPublisher(engine, self.reader, producer, self.clock)
        self.publisher.start(40)

    def publish(self) -> int:
        """Publish the next number and return it once it is on the log."""
        before = self.number
        execute(self.engine, sa.update(commit_watermark).values(advanced_at=sa.text("'-infinity'")))
        self.publisher.run_once()
        assert self.number > before
        until(lambda: self.number in self.reader.read().values())
        return self.number

    def find_loss(self) -> None:
        self.publisher.run_once()
        self.clock.advance(GRACE_S)
        with pytest.raises(CommitsLostError, match="millrace recover"):
            self.publisher.run_once()

    @property
    def number(self) -> int:
        with self.engine.connect() as connection:
            found = DatabaseWatermark(connection).read()
        assert found is not None
        return found.number


@pytest.fixture
def intake(engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer) -> Iterator[Intake]:
    one = Intake(engine, kafka, producer)
    with closing(one.reader):
        yield one


@pytest.fixture
def controls(kafka: KafkaSettings) -> Iterator[JobControlReader]:
    reader = JobControlReader(kafka, client_id="test-replica", clock=SystemClock())
    reader.start(40)
    yield reader
    reader.stop()


def lose_commits(engine: sa.Engine, count: int) -> None:
    """Set the watermark to that of a standby which lacks the last commits."""
    lost = commit_watermark.c.number - count
    execute(engine, sa.update(commit_watermark).values(number=lost))


def has_recovered(engine: sa.Engine, kafka: KafkaSettings) -> bool:
    """Run the command; for a moment after their creation partitions have no leader."""
    try:
        recover(engine, kafka)
    except KafkaUnavailableError:
        return False
    return True


def test_all_roles_stop_until_the_database_is_recovered(
    engine: sa.Engine,
    kafka: KafkaSettings,
    producer: RecordProducer,
    intake: Intake,
    controls: JobControlReader,
) -> None:
    for _ in range(3):
        last = intake.publish()
    raise_if_commits_lost(engine, CommitWatch(SystemClock()))
    lose_commits(engine, 2)

    intake.find_loss()

    assert intake.number == last - 2, "the number must not hide the loss"
    with pytest.raises(CommitsLostError):  # a role that does not read the log
        raise_if_commits_lost(engine, CommitWatch(SystemClock()))
    with pytest.raises(CommitsLostError):  # a role without a database
        until(controls.raise_failure)
    with pytest.raises(CommitsLostError):  # its start
        raise_if_log_says_lost(kafka, client_id="test-replica", timeout_s=30)
    with pytest.raises(CommitsLostError):
        intake.publisher.run_once()

    until(lambda: has_recovered(engine, kafka))

    raise_if_log_says_lost(kafka, client_id="test-replica", timeout_s=30)
    restarted = Intake(engine, kafka, producer)
    with closing(restarted.reader):
        assert restarted.publish() > last


@pytest.mark.parametrize("role", [intake_role.run, webhooks.run, run_writer, run_finaliser])
def test_no_role_starts_on_a_database_that_lost_commits(
    engine: sa.Engine, kafka: KafkaSettings, database_url: str, tmp_path: Path, role: RunRole
) -> None:
    execute(engine, sa.update(commit_watermark).values(lost_above=7))
    env = {
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "MILLRACE_KAFKA_TOPIC_PREFIX": kafka.topic_prefix,
        "MILLRACE_DATABASE_URL": database_url,
        "MILLRACE_DATABASE_POOL_SIZE": "30",
        "MILLRACE_OBJECTS_ROOT": str(tmp_path / "objects"),
        "MILLRACE_WEBHOOKS_SECRET_KEY": base64.b64encode(bytes(KEY_BYTES)).decode(),
    }
    with pytest.raises(CommitsLostError):
        role(env, threading.Event())


def test_a_restart_before_the_loss_is_found_does_not_hide_it(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer, intake: Intake
) -> None:
    intake.publish()
    last = intake.publish()
    lose_commits(engine, 1)
    restarted = Intake(engine, kafka, producer)
    with closing(restarted.reader):
        restarted.find_loss()
        assert restarted.number == last - 1


@pytest.mark.parametrize(("age_s", "advances"), [(0, False), (0.8, False), (1, True), (-60, True)])
def test_the_number_advances_once_a_second(engine: sa.Engine, age_s: float, advances: bool) -> None:
    """A time in the future, of a clock that was set back, must not stop the number."""
    advanced_at = sa.func.now() - timedelta(seconds=age_s)
    with engine.begin() as connection:  # within a transaction, now() is constant
        connection.execute(sa.update(commit_watermark).values(advanced_at=advanced_at))
        before = DatabaseWatermark(connection).read()
        assert before is not None
        after = DatabaseWatermark(connection).advance(before.number)
        expected = replace(before, number=before.number + 1) if advances else None
        assert after == expected


def test_one_of_several_processes_increments_the_number(
    engine: sa.Engine,
    kafka: KafkaSettings,
    producer: RecordProducer,
    intake: Intake,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    number = intake.publish()
    monkeypatch.setattr("storage.postgres.watermark_row._INTERVAL", timedelta(hours=1))
    other = Intake(engine, kafka, producer)
    with closing(other.reader):
        other.publisher.run_once()
        assert other.number == number


def test_a_log_of_another_installation_stops_nothing(
    engine: sa.Engine, kafka: KafkaSettings, producer: RecordProducer, intake: Intake
) -> None:
    """A new database over an old log: its first number ends what the log said."""
    for _ in range(2):
        intake.publish()
    lose_commits(engine, 1)
    intake.find_loss()
    values = {"installation_id": sa.func.gen_random_uuid(), "number": 0, "lost_above": None}
    execute(engine, sa.update(commit_watermark).values(values))
    new = Intake(engine, kafka, producer)
    with closing(new.reader):
        new.publisher.check()
        new.clock.advance(GRACE_S)
        assert new.publish() == 1
    raise_if_log_says_lost(kafka, client_id="test-replica", timeout_s=30)
