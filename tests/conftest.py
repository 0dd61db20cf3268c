"""Real services for tests: one broker and one cluster a session, new topics and databases a test.

`MILLRACE_KAFKA_BOOTSTRAP_SERVERS` and `MILLRACE_DATABASE_URL` name running services to use instead.
Child processes die with the session, also when it is killed.
"""

import logging
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import psutil
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, settings

from benchmarks.stacks.services import running_kafka, running_postgres
from core.runtime.garbage_collection import collect_rarely, exclude_present_objects
from migrations.runner import upgrade
from tests.support import broker_host, vllm_programs
from tests.support.broker_host import broker_of_session
from tests.support.compiled_statements import share_compiled_statements
from tests.support.distribution import FixtureScheduling, rank_of
from tests.support.session_hosts import SessionHost
from tests.support.vllm_programs import running_host

# As roles do: a quarter of the CPU of finding thousands of tests was that of collecting garbage.
collect_rarely()

share_compiled_statements()

# Brokers of tests run for seconds: the optimising compiler would take half of their CPU.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")

# Engines of tests run models of a few megabytes. With a thread for each core, threads wait for each
# other at every operation by spinning: on two cores a token took eight times the CPU.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Brokers and databases of tests write gigabytes that no test reads again. In memory that takes
# a fifth of the CPU that the disk of a virtual machine takes. Tests kill processes, not hosts.
_MEMORY = Path("/dev/shm")
_MEMORY_FREE_MIN = 10 * 2**30
if (
    "PYTEST_DEBUG_TEMPROOT" not in os.environ
    and _MEMORY.is_dir()
    and min(shutil.disk_usage(_MEMORY).free, psutil.virtual_memory().available) > _MEMORY_FREE_MIN
):
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(_MEMORY)

# No deadline, since hosts may be slow. `make test` sets CI and draws the same examples each time;
# `make check` draws new ones.
settings.register_profile(
    "millrace",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("millrace")

# As in roles. With pytest's `log_level` each phase of a test would set the root logger's level four
# times, which clears the cached levels of all loggers: 3 % of the CPU of the unit tests.
logging.getLogger().setLevel(logging.INFO)

# One log line a poll would hide the output of a failing test.
for client in ("httpx", "httpx2"):
    logging.getLogger(client).setLevel(logging.WARNING)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> FixtureScheduling | None:
    if config.getvalue("dist") != "loadfile":
        return None
    return FixtureScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first; otherwise keep the order of the command line."""
    items.sort(key=lambda item: rank_of(item.path))


def pytest_collection_finish() -> None:
    """Let no garbage collection search the million objects that stay for the session."""
    exclude_present_objects()


def pytest_configure(config: pytest.Config) -> None:
    """Start the processes that serve all workers."""
    is_controller = not hasattr(config, "workerinput") and bool(
        getattr(config.option, "numprocesses", None)
    )
    if is_controller and "MILLRACE_KAFKA_BOOTSTRAP_SERVERS" not in os.environ:
        for module in (broker_host, vllm_programs):
            config.add_cleanup(SessionHost(module.HOST_MODULE, module.ADDRESS).close)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        crash = getattr(report.longrepr, "reprcrash", None)
        message, _, _ = str(crash.message if crash else report.longrepr).partition("\n")
        record_failure(f"{report.nodeid[:150]}: {message[:150]}")


def pytest_internalerror(excrepr: object) -> None:
    record_failure(str(excrepr).splitlines()[-1][:300])


def record_failure(line: str) -> None:
    """Append a line to CI's file of failures: an interrupted run prints no summary."""
    if path := os.environ.get("FAILURES"):
        with Path(path).open("a", errors="backslashreplace") as failures:
            failures.write(f"{line}\n")


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`host:port` of a real broker, which all workers of a session share."""
    if external := os.environ.get("MILLRACE_KAFKA_BOOTSTRAP_SERVERS"):
        yield external
        return
    if broker_host.ADDRESS in os.environ:
        yield broker_of_session()
        return
    with running_kafka(tmp_path_factory.mktemp("kafka")) as kafka:
        yield kafka.address


@pytest.fixture(scope="session")
def postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database in a real cluster."""
    if external := os.environ.get("MILLRACE_DATABASE_URL"):
        yield external
        _cloning_engine(external).dispose()
        return
    # Each test clones a database: without durability that takes half of the time.
    options = ("-c", "fsync=off", "-c", "full_page_writes=off", "-c", "wal_compression=off")
    with running_postgres(tmp_path_factory.mktemp("postgres"), *options) as postgres:
        yield postgres.address
        _cloning_engine(postgres.address).dispose()


@pytest.fixture(scope="session")
def vllm_host() -> Iterator[None]:
    """The process that starts programs that use vLLM (`tests.support.vllm_programs`)."""
    with running_host():
        yield


@pytest.fixture(scope="session")
def migrated_template(postgres_url: str) -> Iterator[str]:
    """The name of a database at the newest revision, which tests clone."""
    name = f"template_{uuid.uuid4().hex[:12]}"
    execute(postgres_url, f"CREATE DATABASE {name}")
    upgrade(with_database(postgres_url, name))
    yield name
    execute(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database_url(postgres_url: str, migrated_template: str) -> Iterator[str]:
    """The SQLAlchemy URL of an empty database of this test alone, at the newest revision."""
    with cloned_database(postgres_url, migrated_template) as url:
        yield url


@pytest.fixture
def topic_prefix() -> str:
    """A prefix of this test alone, for its topics and groups."""
    return f"test-{uuid.uuid4().hex[:12]}."


@contextmanager
def cloned_database(postgres_url: str, template: str) -> Iterator[str]:
    """Clone `template` and drop the clone at the end; yields its SQLAlchemy URL."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    engine = _cloning_engine(postgres_url)
    # Copied files take two thirds of the CPU of logged pages, and bring caches with them.
    create = f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY file_copy"
    with engine.connect() as connection:
        connection.execute(sa.text(create))
    yield with_database(postgres_url, name)
    with engine.connect() as connection:
        connection.execute(sa.text(f"DROP DATABASE {name} WITH (FORCE)"))


@cache
def _cloning_engine(postgres_url: str) -> sa.Engine:
    """Keep one connection for all clones: a new one takes as much CPU as the clone."""
    return sa.create_engine(
        postgres_url, pool_size=1, pool_pre_ping=True, isolation_level="AUTOCOMMIT"
    )


def execute(url: str, statement: str) -> None:
    """Run one statement outside any transaction."""
    engine = sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(statement))


def with_database(url: str, name: str) -> str:
    """Return `url` with another database."""
    return sa.make_url(url).set(database=name).render_as_string(hide_password=False)
