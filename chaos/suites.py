"""Suites: the installations that drills share, and the drills that run on each."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.drills import (
    broker_loss,
    cancel_expire,
    disk_full,
    engine_recovery,
    idempotency,
    lost_leases,
    poison_items,
    postgres_loss,
    recovery,
    reexecution,
    storm,
    zombies,
)
from chaos.drills.context import Drill
from chaos.faults import clocks
from chaos.installations.installation import InstallationSpec
from chaos.installations.settings import CLUSTER_ROLES, POISONED_ROLES
from cli.demo.demo_models import ensure_tiny_llama
from cli.stack.state.data_folder import cache_dir

_SIMULATED: Final = ("--simulated-latency-ms", "50", "--simulated-concurrency", "32")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillSpec:
    """A drill, the promises that it tests, and how many rounds of it run."""

    name: str
    run: Drill
    promises: frozenset[str]
    trials: int  # rounds of `make chaos`
    trials_long: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """An installation and the drills that run on it, in order."""

    name: str
    build_spec: Callable[[Path, str, float], InstallationSpec]
    """Takes the data folder, the upstream's URL, and the clock offset of a second host."""

    drills: tuple[DrillSpec, ...]
    records_executions: bool = False  # items run on `RecordingUpstream`


def _pair(data: Path, _url: str, skew_s: float) -> InstallationSpec:
    """Two hosts on one broker with a simulated engine; the second host's clock is wrong."""
    return InstallationSpec(
        data=data,
        options=_SIMULATED,
        host_names=("a", "b"),
        env_by_host={"b": clocks.skewed(skew_s)},
    )


def _poisoned(data: Path, _url: str, _skew_s: float) -> InstallationSpec:
    """Two hosts whose engines inject faults, with the default limit of executions for an item."""
    options = ("--simulated-latency-ms", "20", "--simulated-concurrency", "64")
    return InstallationSpec(data=data, options=options, env=POISONED_ROLES, host_names=("a", "b"))


def _recorded(data: Path, url: str, _skew_s: float) -> InstallationSpec:
    """One host with an upstream that records executions."""
    engine = ("--engine", "openai_http", "--upstream", url, "--model", cancel_expire.MODEL)
    return InstallationSpec(data=data, options=(*engine, "--concurrency", "16"))


def _engine(data: Path, _url: str, _skew_s: float) -> InstallationSpec:
    """One host with vLLM and a small model of random weights."""
    model = ensure_tiny_llama(cache_dir(os.environ) / "models" / engine_recovery.MODEL)
    options = ("--engine", "vllm", "--model", f"{engine_recovery.MODEL}={model}")
    return InstallationSpec(data=data, options=options)


def _cluster(data: Path, _url: str, _skew_s: float) -> InstallationSpec:
    """One host on three brokers."""
    return InstallationSpec(data=data, options=_SIMULATED, env=CLUSTER_ROLES, broker_count=3)


def _small_disks(data: Path, _url: str, _skew_s: float) -> InstallationSpec:
    """One host whose database, log and object store each lie on a small disk of their own."""
    mounts = dict.fromkeys(disk_full.FOLDERS.values(), disk_full.SIZE_MB)
    return InstallationSpec(data=data, options=_SIMULATED, mounts=mounts)


SUITES: Final = (
    Suite(
        name="recorded",
        build_spec=_recorded,
        records_executions=True,
        drills=(
            DrillSpec(
                name="cancel",
                run=cancel_expire.cancel,
                promises=frozenset({"P7"}),
                trials=1,
                trials_long=5,
            ),
            DrillSpec(
                name="expire",
                run=cancel_expire.expire,
                promises=frozenset({"P8"}),
                trials=1,
                trials_long=4,
            ),
            DrillSpec(
                name="rework",
                run=reexecution.run,
                promises=frozenset({"P3"}),
                trials=2,
                trials_long=10,
            ),
        ),
    ),
    Suite(
        name="pair",
        build_spec=_pair,
        drills=(
            DrillSpec(
                name="zombies", run=zombies.run, promises=frozenset({"P9"}), trials=1, trials_long=8
            ),
            DrillSpec(
                name="leases",
                run=lost_leases.run,
                promises=frozenset({"P9"}),
                trials=0,
                trials_long=1,
            ),
            DrillSpec(
                name="keys",
                run=idempotency.run,
                promises=frozenset({"P5"}),
                trials=1,
                trials_long=3,
            ),
            DrillSpec(
                name="recovery",
                run=recovery.run,
                promises=frozenset({"A12"}),
                trials=1,
                trials_long=2,
            ),
            DrillSpec(
                name="postgres",
                run=postgres_loss.run,
                promises=frozenset({"P11"}),
                trials=1,
                trials_long=2,
            ),
            DrillSpec(
                name="storm",
                run=storm.run,
                promises=frozenset({"P1", "P2", "P4", "P5", "P6", "P9"}),
                trials=1,
                trials_long=4,
            ),
        ),
    ),
    Suite(
        name="poisoned",
        build_spec=_poisoned,
        drills=(
            DrillSpec(
                name="poison",
                run=poison_items.run,
                promises=frozenset({"P13"}),
                trials=1,
                trials_long=2,
            ),
        ),
    ),
    Suite(
        name="engine",
        build_spec=_engine,
        drills=(
            DrillSpec(
                name="vllm",
                run=engine_recovery.run,
                promises=frozenset({"A12"}),
                trials=0,
                trials_long=1,
            ),
        ),
    ),
    Suite(
        name="cluster",
        build_spec=_cluster,
        drills=(
            DrillSpec(
                name="brokers",
                run=broker_loss.run,
                promises=frozenset({"P10"}),
                trials=0,
                trials_long=1,
            ),
        ),
    ),
    Suite(
        name="disks",
        build_spec=_small_disks,
        drills=(
            DrillSpec(
                name="disks",
                run=disk_full.run,
                promises=frozenset({"P12"}),
                trials=0,
                trials_long=1,
            ),
        ),
    ),
)
