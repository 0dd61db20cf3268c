"""Goal: appends to small jobs do not wait for appends to large jobs."""

import threading

import pytest
import sqlalchemy as sa

from core.clock import SystemClock
from jobs.expansion.load_cache import LoadCache
from jobs.expansion.pool_capacity import PoolCapacities
from jobs.expansion.result_partitions import ResultPartitions
from jobs.leasing.active_leases import ActiveLeases
from jobs.periodic import PRODUCERS, PeriodicDeps, start_periodic_tasks
from jobs.settings import IntakeSettings
from jobs.supervised_threads import SupervisedThreads
from jobs.tables.files import job_inputs
from jobs.validation.append_validator import SMALL
from jobs.validation.validation_process import ValidationProcesses
from jobs.validation.validator import MEDIUM_BYTES_MAX
from storage.objects.local_object_store import LocalObjectStore
from storage.objects.object_store import ObjectBlocks
from tests.integration.jobs.rows import execute
from tests.integration.jobs.test_appending import Site, line
from tests.support.until import until
from topics.clients.admin import TopicAdmin
from topics.clients.producer import RecordProducer
from topics.settings import KafkaSettings

WAIT_S_MAX = 40.0


@pytest.fixture
def site(engine: sa.Engine, objects: LocalObjectStore, processes: ValidationProcesses) -> Site:
    return Site(engine, objects, processes)


def test_small_appends_do_not_wait_for_jobs_with_large_files(site: Site) -> None:
    large, grown = (
        Site(site.engine, site.objects, site.processes),
        Site(site.engine, site.objects, site.processes),
    )
    large.job_id = large.job("large", 1, input_bytes=MEDIUM_BYTES_MAX)
    grown.append(line("b-0"))
    grown.validator.run_once()
    larger = sa.update(job_inputs).values(size_bytes=MEDIUM_BYTES_MAX)
    execute(site.engine, larger)  # as if the file were larger
    for tenants in (site, large, grown):
        tenants.append(line("c-0"))

    site.validator_of(SMALL).run_once()
    assert (site.states(), large.states()) == (["accepted"], ["validating"])
    assert grown.states() == ["accepted", "validating"]
    site.append(line("d-0"))
    site.validator_of(~SMALL).run_once()
    assert (site.states(), large.states()) == (["accepted", "validating"], ["accepted"])
    assert grown.states() == ["accepted", "accepted"]


def test_small_appends_are_validated_while_a_large_one_runs(
    site: Site, kafka: KafkaSettings, producer: RecordProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = Site(site.engine, site.objects, site.processes)
    large.job_id = large.job("large", 1, input_bytes=MEDIUM_BYTES_MAX)
    large.append(line("b-0"))
    started, may_continue, clock = threading.Event(), threading.Event(), SystemClock()
    read = site.objects.read

    def blocking(key: str) -> ObjectBlocks:
        if key == "large":
            started.set()
            assert may_continue.wait(WAIT_S_MAX)
        return read(key)

    monkeypatch.setattr(site.objects, "read", blocking)
    deps = PeriodicDeps(
        settings=IntakeSettings(),
        engine=site.engine,
        objects=site.objects,
        validation=site.validation,
        holder="a",
        leases=ActiveLeases(site.engine, role="intake", holder="a", ttl_s=60),
        capacities=PoolCapacities(clock),
        loads=LoadCache(site.engine, ResultPartitions()),
        admin=TopicAdmin(kafka),
        clock=clock,
    )
    threads = SupervisedThreads(site.stop, away_s_max=1, clock=clock)
    start_periodic_tasks(threads, deps, [producer] * PRODUCERS)
    try:
        assert started.wait(WAIT_S_MAX)
        site.append(line("b-0"))
        until(lambda: site.states() != ["validating"])
        assert (site.states(), large.states()) == (["accepted"], ["validating"])
    finally:
        may_continue.set()
        site.stop.set()
        threads.join(WAIT_S_MAX)
