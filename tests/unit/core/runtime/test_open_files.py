"""Goal: a role raises its open file limit for its connections, or logs that it cannot."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

LIMITED = """
import resource
from core.runtime.logs import configure_logs
from core.runtime.open_files import request_open_file_limit
configure_logs("a-role")
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1000))
request_open_file_limit(800)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
request_open_file_limit(500)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
request_open_file_limit(2000)
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""

STARTED = """
import resource, sys, threading
from {module} import __main__ as role

def report(*_, **__):
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    raise SystemExit(0)

role.{next} = report
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1000))
{start}
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )


def test_the_soft_limit_is_raised_to_the_hard_limit_with_one_warning() -> None:
    done = run(LIMITED)

    assert done.stdout.splitlines() == ["800 1000", "800 1000", "1000 1000"]
    (line,) = map(json.loads, done.stderr.splitlines())
    assert line["level"] == "warning"
    assert "ulimit -Hn" in line["event"]
    assert (line["wanted"], line["allowed"]) == (2000, 1000)


@pytest.mark.parametrize(
    ("module", "following", "start", "allowed"),
    [
        (
            "api",
            "create_app",
            """role.serve({
                "MILLRACE_DATABASE_URL": "postgresql://nobody@127.0.0.1/none",
                "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9",
                "MILLRACE_OBJECTS_ROOT": FOLDER,
                "MILLRACE_ONLINE_OPEN_CALLS_MAX": "100",
                "MILLRACE_ONLINE_OPEN_CALLS_PER_TENANT_MAX": "90",
                "MILLRACE_API_REQUESTS_IN_FLIGHT_MAX": "50",
                "MILLRACE_API_FOLLOWERS_MAX": "10",
            })""",
            2 * 100 + 50 + 10 + 256,
        ),
        (
            "gpu_consumers",
            "run",
            """role.run_on_loop({
                "MILLRACE_GPU_POOL": "a-pool",
                "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:9",
                "MILLRACE_OBJECTS_ROOT": FOLDER,
                "MILLRACE_ENGINE_KIND": "openai_http",
                "MILLRACE_ENGINE_MODEL_NAME": "a-model",
                "MILLRACE_ENGINE_UPSTREAM": "http://127.0.0.1:9",
                "MILLRACE_ENGINE_CONCURRENCY": "400",
            }, threading.Event())""",
            400 + 256,
        ),
    ],
    ids=["api", "gpu-consumer"],
)
def test_a_role_raises_its_open_file_limit_at_start(
    module: str, following: str, start: str, allowed: int, tmp_path: Path
) -> None:
    start = start.replace("FOLDER", repr(str(tmp_path)))
    done = run(STARTED.format(module=module, next=following, start=start))

    assert done.stdout.splitlines() == [str(allowed)]
