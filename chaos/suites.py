"""Suites: the installations that drills share, and the drills that run on each."""

import os
from collections.abc import Callable, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.drills import (
    batchers,
    broker_loss,
    cancel_expire,
    disk_full,
    idempotency,
    lost_leases,
    newcomers,
    overload,
    poison_items,
    pool_isolation,
    postgres_loss,
    recovery,
    reexecution,
    scaling,
    storm,
    zombies,
)
from chaos.drills.context import Drill
from chaos.installations.installation import InstallationSpec
from chaos.installations.settings import CLUSTER_ROLES, POISONED_ROLES, ROLES, skewed_clock
from cli.demo.demo_models import ensure_tiny_llama
from cli.stack.data_folder import cache_dir

_SIMULATED: Final = ("--simulated-latency-ms", "50", "--simulated-concurrency", "32")


@dataclass(frozen=True, slots=True)
class DrillSpec:
    """A drill, the promises that it tests, and its rounds in a quick run and in a long one."""

    name: str
    run: Drill
    promises: Set[str]
    rounds: tuple[int, int]


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
        env_by_host={"b": skewed_clock(skew_s)},
    )


def _poisoned(data: Path, _url: str, _skew_s: float) -> InstallationSpec:
    """Two hosts whose engines inject faults, with the default limit of executions for an item."""
    options = ("--simulated-latency-ms", "20", "--simulated-concurrency", "64")
    return InstallationSpec(data=data, options=options, env=POISONED_ROLES, host_names=("a", "b"))


def _pools(data: Path, _url: str, _skew_s: float) -> InstallationSpec:
    """One host with three pools of a simulated engine; items of one of them can be slow."""
    models = (option for name in pool_isolation.SERVED_MODELS for option in ("--model", name))
    speed = (
        *("--simulated-latency-ms", str(pool_isolation.LATENCY_MS)),
        *("--simulated-concurrency", str(pool_isolation.CONCURRENCY)),
    )
    env = {**ROLES, "MILLRACE_ENGINE_SIMULATED_FAULTS": pool_isolation.FAULTS}
    return InstallationSpec(data=data, options=(*speed, *models), env=env)


def _scaled(data: Path, _url: str, _skew_s: float) -> InstallationSpec:
    """One host whose autoscaler starts and ends replicas of a simulated engine."""
    speed = (
        *("--simulated-latency-ms", str(scaling.LATENCY_MS)),
        *("--simulated-concurrency", str(scaling.CONCURRENCY)),
    )
    policies = str(scaling.write_policies(data).absolute())
    return InstallationSpec(data=data, options=(*speed, "--autoscale", policies))


def _recorded(data: Path, url: str, _skew_s: float) -> InstallationSpec:
    """One host with an upstream that records executions."""
    engine = ("--engine", "openai_http", "--upstream", url, "--model", cancel_expire.MODEL)
    return InstallationSpec(data=data, options=(*engine, "--concurrency", "16"))


def _engine(data: Path, _url: str, _skew_s: float) -> InstallationSpec:
    """One host with vLLM and a small model of random weights."""
    model = ensure_tiny_llama(cache_dir(os.environ) / "models" / recovery.VLLM_MODEL)
    options = ("--engine", "vllm", "--model", f"{recovery.VLLM_MODEL}={model}")
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
            DrillSpec("cancel", cancel_expire.cancel, {"P7"}, rounds=(1, 5)),
            DrillSpec("expire", cancel_expire.expire, {"P8"}, rounds=(1, 4)),
            DrillSpec("rework", reexecution.run, {"P3"}, rounds=(2, 10)),
        ),
    ),
    Suite(
        name="pair",
        build_spec=_pair,
        drills=(
            DrillSpec("zombies", zombies.run, {"P9"}, rounds=(1, 8)),
            DrillSpec("leases", lost_leases.run, {"P9"}, rounds=(0, 1)),
            DrillSpec("keys", idempotency.run, {"P5"}, rounds=(1, 3)),
            DrillSpec("batchers", batchers.run, {"P2", "P4"}, rounds=(1, 2)),
            DrillSpec("recovery", recovery.run, {"A12"}, rounds=(1, 2)),
            DrillSpec("postgres", postgres_loss.run, {"P11"}, rounds=(1, 2)),
            DrillSpec("storm", storm.run, {"P1", "P2", "P4", "P5", "P6", "P9"}, rounds=(1, 4)),
        ),
    ),
    Suite(
        name="poisoned",
        build_spec=_poisoned,
        drills=(DrillSpec("poison", poison_items.run, {"P13"}, rounds=(1, 2)),),
    ),
    Suite(
        name="pools",
        build_spec=_pools,
        drills=(
            DrillSpec("overload", overload.run, {"P14"}, rounds=(1, 1)),
            DrillSpec("newcomers", newcomers.run, {"P15"}, rounds=(1, 1)),
            DrillSpec("pools", pool_isolation.run, {"P15"}, rounds=(1, 1)),
        ),
    ),
    Suite(
        name="scaled",
        build_spec=_scaled,
        drills=(DrillSpec("scaling", scaling.run, {"P16"}, rounds=(1, 1)),),
    ),
    Suite(
        name="engine",
        build_spec=_engine,
        drills=(DrillSpec("vllm", recovery.run_vllm, {"A12"}, rounds=(0, 1)),),
    ),
    Suite(
        name="cluster",
        build_spec=_cluster,
        drills=(DrillSpec("brokers", broker_loss.run, {"P10"}, rounds=(0, 1)),),
    ),
    Suite(
        name="disks",
        build_spec=_small_disks,
        drills=(DrillSpec("disks", disk_full.run, {"P12"}, rounds=(0, 1)),),
    ),
)
