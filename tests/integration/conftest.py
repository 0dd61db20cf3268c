"""Fixtures that integration tests of several packages share."""

from collections.abc import Collection, Iterator

import pytest
import sqlalchemy as sa
from pydantic import SecretStr

from storage.postgres.engines import create_engine
from storage.postgres.settings import DatabaseSettings
from tests.support.certificates import write_certificate
from tests.support.until import until
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.records.catalogue import SHARED_TOPICS
from topics.settings import KafkaSettings


@pytest.fixture(scope="session")
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a file with one certificate authority."""
    return str(write_certificate(tmp_path_factory.mktemp("authority"), "authority"))


@pytest.fixture(scope="module", autouse=True)
def few_authorities(one_authority: str) -> Iterator[None]:
    """Let each new HTTP client load one certificate authority: 140 take 35 ms of CPU.

    Requests of tests are plain HTTP, or a test names its own certificates.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", one_authority)
        yield


@pytest.fixture(scope="session")
def roles() -> Collection[str]:
    """The roles whose topics tests need, or none for all topics; a package may replace it.

    Creating all topics takes 0.2 s of CPU.
    """
    return ()


@pytest.fixture
def kafka(kafka_bootstrap: str, topic_prefix: str, roles: Collection[str]) -> KafkaSettings:
    """The session's broker, with shared topics of this test alone; a package may replace it."""
    settings = KafkaSettings(bootstrap_servers=kafka_bootstrap, topic_prefix=topic_prefix)
    wanted = {*roles}
    TopicAdmin(settings).create(
        topic
        for topic in SHARED_TOPICS
        if not wanted or wanted & {*topic.written_by, *topic.read_by}
    )
    return settings


@pytest.fixture
def producer(kafka: KafkaSettings) -> Iterator[RecordProducer]:
    producer = RecordProducer(kafka, client_id="test", linger_ms=1)
    yield producer
    producer.close()


@pytest.fixture
def database(database_url: str) -> DatabaseSettings:
    """A database at the newest revision, of this test alone."""
    return DatabaseSettings(url=SecretStr(database_url))


@pytest.fixture
def engine(database: DatabaseSettings) -> Iterator[sa.Engine]:
    engine = create_engine(database, application_name="test")
    pool = engine.pool
    assert isinstance(pool, sa.QueuePool)
    yield engine
    # A cancelled task may leave its transaction to a thread. Its connection would stay open.
    until(lambda: not pool.checkedout())
    engine.dispose()


@pytest.fixture
def connection(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One transaction, committed at the end of the test."""
    with engine.begin() as opened:
        yield opened
