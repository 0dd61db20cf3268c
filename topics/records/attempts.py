"""Record schemas of the topic `attempts`: redelivered batches, and the processes of replicas."""

from uuid import UUID

from topics.records.records import Record


class AttemptUnit(Record, frozen=True):
    """Items of a batch that run together, by their positions in the batch."""

    first: int
    count: int
    crashes: int  # executions during which the process crashed, and that count
    hosts: list[str] = []  # on which it crashed while it ran alone
    forgiven: int = 0  # further such executions, on hosts whose processes kept ending
    awaits_proof: bool = False  # crashed alone: it is charged once its host serves other work
    process_ends: list[UUID] = []  # the processes that ended while it ran, as far as they count


class ProcessEnd(Record, frozen=True):
    """An end of a replica's process that was not a stop, as its successor found it."""

    lived_s: float  # from its readiness to the start of its successor; 0 if it was never ready
    has_served: bool  # it had ended several times as many items as its engine runs at once
    has_proven: bool  # it had lived several times as long as the processes before it
    ran_alone: bool  # a single suspect item ran, which explains the end


class ReplicaProcess(Record, frozen=True):
    """One process of a replica, and how the processes before it on its host ended."""

    node: str  # its host name: process ids are compared where it is equal
    pid: int
    pool: str
    started_s: float  # by its host's clock
    ends: list[ProcessEnd] = []  # in order
    ready_s: float = 0.0  # 0: it is not ready
    has_served: bool = False
    has_proven: bool = False
    is_stopped: bool = False  # it has ended by itself, which is no crash
    predecessors: list[UUID] = []  # the processes before it on its host, in order


class BatchAttempt(Record, frozen=True):
    """The progress of a redelivered batch's owner (`attempts`, compacted, keyed by batch).

    It is acknowledged before its first unit starts, so that the next owner knows which unit ran.
    The record of a process has the process id as its key, a `process` and no units.
    """

    batch_id: UUID
    life: int  # counts owners: the record with the highest counts, a paused owner's is late
    units: list[AttemptUnit]  # that remain, in order
    is_running: bool  # the first unit; False: its owner released the batch without a crash
    in_company: bool = False  # other items run in the engine and may crash the process too
    host_id: str = ""  # of its owner
    process_id: UUID | None = None  # of its owner
    host_is_failing: bool = False  # the owner's host is suspect: a crash is not counted
    process: ReplicaProcess | None = None
