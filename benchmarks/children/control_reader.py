"""Reads `control` to its end as a start does: `… .control_reader SERVERS`."""

import json
import resource
import sys
import time
from pathlib import Path

from benchmarks.children.line_child import die_with_parent, report_line, wait_for_line
from core.clock import SystemClock
from topics.settings import KafkaSettings
from topics.tail_readers.job_controls import JobControlReader

START_S_MAX = 600.0
KIB = 1024


def main(servers: str) -> None:
    """Read once and report."""
    reader = JobControlReader(
        KafkaSettings(bootstrap_servers=servers), client_id="benchmark", clock=SystemClock()
    )
    before_bytes = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    reader.start(START_S_MAX)
    result = {
        "seconds": time.perf_counter() - began_s,
        "cpu_s": time.process_time() - began_cpu_s,
        "before_bytes": before_bytes,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB,
        "known": reader.job_count,
    }
    report_line("result", json.dumps(result))
    wait_for_line()


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
