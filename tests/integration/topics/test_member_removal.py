"""Goal: a successor removes the group membership of an ended process at once."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from topics.clients.admin import TopicAdmin
from topics.clients.group_membership import GroupMembership
from topics.clients.member_removal import remove_member
from topics.records.catalogue import RESULTS
from topics.settings import KafkaSettings

BROKERS_SESSION_S = 6.0
"""Of the broker of these tests, for members of protocol `consumer`."""

MEMBER = """
import sys
from pathlib import Path
from topics.clients.consumer import GroupConsumer
from topics.settings import KafkaSettings

consumer = GroupConsumer(
    KafkaSettings.model_validate_json(sys.argv[1]),
    group="readers",
    topics=["results"],
    client_id="dies",
    on_assign=lambda partitions: print(len(partitions), flush=True),
    on_revoke=lambda _: None,
)
while True:
    consumer.poll(1, 0.1)
"""


@pytest.fixture(params=["classic", "consumer"])
def settings(
    request: pytest.FixtureRequest, kafka_bootstrap: str, topic_prefix: str, tmp_path: Path
) -> KafkaSettings:
    return KafkaSettings(
        bootstrap_servers=kafka_bootstrap,
        topic_prefix=topic_prefix,
        group_protocol=request.param,
        session_timeout_s=60,
        members_folder=tmp_path / "members",
    )


@pytest.fixture
def group(settings: KafkaSettings) -> str:
    TopicAdmin(settings).create([RESULTS])
    return f"{settings.topic_prefix}readers"


@contextmanager
def somebody(settings: KafkaSettings) -> Iterator["subprocess.Popen[str]"]:
    """A process that owns every partition; killed at the end of the block at the latest."""
    argv = [sys.executable, "-c", MEMBER, settings.model_dump_json()]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{RESULTS.partition_count}\n"
            yield process
        finally:
            process.kill()


def member_count(settings: KafkaSettings) -> int:
    return TopicAdmin(settings).member_count("readers")


def test_the_membership_of_a_live_process_is_not_removed(
    settings: KafkaSettings, group: str
) -> None:
    with somebody(settings) as living:
        GroupMembership(settings, group, settings.group_protocol).remove_predecessor()
        living.send_signal(signal.SIGSTOP)
        GroupMembership(settings, group, settings.group_protocol).remove_predecessor()
        assert member_count(settings) == 1


def test_a_successor_gets_the_partitions_before_the_session_times_out(
    settings: KafkaSettings, group: str
) -> None:
    with somebody(settings):
        pass
    began_s = time.monotonic()
    with somebody(settings):  # when it owns them all
        assert time.monotonic() - began_s < BROKERS_SESSION_S - 1
        assert member_count(settings) == 1


def test_the_removal_of_an_absent_member_is_not_logged(
    settings: KafkaSettings, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    remove_member(settings, group, "never-there", settings.group_protocol, timeout_s=5.0)
    assert not caplog.records


def test_a_removal_from_an_unavailable_broker_times_out(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        unavailable = KafkaSettings(bootstrap_servers=f"127.0.0.1:{silent.getsockname()[1]}")
        remove_member(unavailable, "readers", "gone", "classic", timeout_s=0.2)
    [told] = [record for record in caplog.records if record.name == "topics.clients.member_removal"]
    assert told.message == "member_not_left"
