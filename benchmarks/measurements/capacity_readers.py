"""CPU of the processes that follow 1,000 busy replicas in 50 pools, and of a choice among them.

What: the readers of an API process, of intake (topic `capacity`) and of a batcher (`capacity` and
`grants`), each in a process of its own, and `CreditLedger.best` with `spend` in a pool of 1,000
replicas. The rest of the roles is not measured.

How: one process writes the records of all replicas at their real intervals, each record as a record
batch of its own; the readers run one after the other, and `share` is their CPU time, the client's
threads included, over wall time.

Goal: at most 5 % of a core each, and a few microseconds a batch.
"""

import json
import time
from contextlib import closing, suppress
from pathlib import Path

from batcher.policy.credits import CreditLedger
from benchmarks.children.line_child import LineChild
from benchmarks.runs import Report, Row, Run, Setup, VoidRunError
from benchmarks.stacks.services import running_kafka
from gpu_consumers.flow_control.capacity_schedule import REPEAT_S as CAPACITY_S
from gpu_consumers.flow_control.grant_changes import BUSY_REPEAT_S as GRANTS_S
from topics.clients.admin import TopicAdmin
from topics.records.catalogue import CAPACITY, GRANTS
from topics.records.records import ReplicaGrants
from topics.settings import KafkaSettings

REPLICAS, QUICK_REPLICAS = 1_000, 100
POOLS = 50
SECONDS, QUICK_SECONDS = 15.0, 3.0
STYLES = ("api", "intake", "batcher")
BATCHES = 10_000
_START_S_MAX = 60.0
_SHARE_MIN = 0.9
"""Part of the intended records that must have been read, or the machine was too slow."""


def measure(setup: Setup) -> Report:
    """Run the benchmark; `--items` is the number of replicas. Raises VoidRunError."""
    count = setup.count(REPLICAS, QUICK_REPLICAS)
    seconds = QUICK_SECONDS if setup.quick else SECONDS
    runs, rows = [], []
    with running_kafka(setup.work) as kafka:
        TopicAdmin(KafkaSettings(bootstrap_servers=kafka.address)).create([CAPACITY, GRANTS])
        with suppress(VoidRunError):  # the broker is slow at first
            _read(kafka.address, STYLES[0], count, QUICK_SECONDS, setup.work)
        for style in STYLES:
            run = _read(kafka.address, style, count, seconds, setup.work)
            setup.note(f"{style}: {run}, {run.facts}")
            runs.append(run)
            share = 100 * sum(run.cpu_s.values()) / run.seconds
            rows += [
                Row(metric=f"{style}, share of a core", unit="%", ours=share, goal="≤ 5"),
                Row(metric=f"{style}, CPU", unit="µs/record", ours=run.cpu_us),
            ]
    row = Row(metric="choose a replica", unit="µs/batch", ours=choice_us(count), goal="≤ 10")
    return Report(name="capacity_readers", rows=[*rows, row], runs=runs)


def _read(servers: str, style: str, count: int, seconds: float, folder: Path) -> Run:
    reader_module = "benchmarks.children.capacity_reader"
    load_module = "benchmarks.children.capacity_load"
    load = [servers, str(count), str(POOLS), str(seconds + 5)]
    with (
        closing(LineChild("load", load_module, load, folder)) as writer,
        closing(LineChild(style, reader_module, [servers, style, str(seconds)], folder)) as reader,
    ):
        for child in (writer, reader):
            child.expect("ready", _START_S_MAX)
        for child in (writer, reader):
            child.send_line("go")
        found = json.loads(reader.expect("result", seconds + _START_S_MAX))
        writer.expect("result", seconds + _START_S_MAX)
    # Half of the replicas are of another class, whose capacity a batcher reads now and then.
    per_s = 0.5 / CAPACITY_S + 1 / GRANTS_S if style == "batcher" else 1 / CAPACITY_S
    wanted = count * found["seconds"] * per_s
    if found["records"] < _SHARE_MIN * wanted:
        raise VoidRunError(f"{found['records']:,} of {wanted:,.0f} records were read")
    return Run(
        items=found["records"],
        seconds=found["seconds"],
        cpu_s={style: found["cpu_s"]},
        facts={"polls_per_s": found["polls"] / found["seconds"]},
    )


def choice_us(count: int) -> float:
    """Return the µs of a choice among `count` replicas of a pool, and of spending its credit."""
    ledger = CreditLedger("b", "bulk", silence_s_max=3.0)
    for number in range(count):
        granted = {"b": 10_000_000 + number % 17}
        grants = ReplicaGrants(f"r-{number}", 1, "p", "bulk", [number], granted, 64)
        ledger.record_grants(grants, now_s=0.0)
    began_s = time.perf_counter()
    for _ in range(BATCHES):
        best = ledger.best("p", now_s=1.0)
        assert best is not None
        ledger.spend(best.capacity.replica_id, 1, now_s=1.0)
    return (time.perf_counter() - began_s) / BATCHES * 1e6
