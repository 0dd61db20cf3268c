"""One measured run of the throwaway pipeline: new topics and processes, an empty table."""

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import psycopg
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.children.line_child import LineChild
from benchmarks.data.input_files import InputFile
from benchmarks.runs import Run
from benchmarks.stacks.services import Service, driver_url
from benchmarks.stacks.verification import verify_output
from benchmarks.statistics.cpu import cpu_by_role, cpu_used
from benchmarks.throwaway.stages import PARTITIONS, RECORD_BYTES_MAX, TABLE, TOPICS

READY_S_MAX = 60.0
DONE_S_MAX = 600.0


@dataclass(slots=True)
class Throwaway:
    """The pipeline on its own broker and database."""

    kafka: Service
    postgres: Service
    file: InputFile
    folder: Path
    _runs: int = 0

    def run(self) -> Run:
        """Process the file and verify the output. Raises VoidRunError.

        The processes have their partitions before the clock starts and live until it stops, so
        neither their start nor their end is measured.
        """
        self._runs += 1
        run, output = f"-{self._runs}", self.folder / "throwaway.jsonl"
        admin = AdminClient({"bootstrap.servers": self.kafka.address})
        self._create_topics(admin, run)
        url = driver_url(self.postgres.address)
        with psycopg.connect(url) as connection:
            connection.execute(TABLE)
            connection.execute("TRUNCATE results")
        with ExitStack() as cleanup:
            roles = self._start(run, url, output, cleanup)
            for child in roles.values():
                child.expect("ready", READY_S_MAX)
            pids = {name: child.pid for name, child in roles.items()}
            pids |= self.kafka.roles | self.postgres.roles
            before = cpu_by_role(pids)
            began_s = time.perf_counter()
            roles["feed"].send_line("go")
            roles["store"].expect("done", DONE_S_MAX)
            seconds = time.perf_counter() - began_s
            used = cpu_used(before, cpu_by_role(pids))
        for future in admin.delete_topics([topic + run for topic in TOPICS]).values():
            future.result(READY_S_MAX)
        verify_output(output, self.file.items)
        return Run(items=self.file.items, seconds=seconds, cpu_s=used)

    def _create_topics(self, admin: AdminClient, run: str) -> None:
        options = {"max.message.bytes": str(RECORD_BYTES_MAX)}
        topics = [NewTopic(topic + run, PARTITIONS, 1, config=options) for topic in TOPICS]
        for future in admin.create_topics(topics).values():
            future.result(READY_S_MAX)

    def _start(
        self, run: str, database_url: str, output: Path, cleanup: ExitStack
    ) -> dict[str, LineChild]:
        items = str(self.file.items)
        arguments = {
            "group": [items],
            "answer": [items],
            "store": [items, database_url, str(output)],
            "feed": [str(self.file.path)],
        }
        started = {}
        for role, own in arguments.items():
            command = [role, self.kafka.address, run, *own]
            child = LineChild(role, "benchmarks.throwaway.stages", command, self.folder / "logs")
            cleanup.callback(child.close)
            started[role] = child
        return started
