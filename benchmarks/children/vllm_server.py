"""vLLM's own HTTP server on a model folder: `… .vllm_server FOLDER NAME`.

Its options are those of Millrace's vLLM engine, parsed by vLLM from the same command line. Reports
`@ready PORT` once it is healthy and ends with its parent.
"""

import os
import runpy
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from benchmarks.children.line_child import die_with_parent, report_line, wait_for_line
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.vllm.engine_arguments import vllm_arguments
from gpu_consumers.engines.vllm.vllm_engine import vllm_environment

_POLL_S = 0.2
_REQUEST_S_MAX = 5.0


def main(folder: str, name: str) -> None:
    """Serve on a free port of this machine."""
    settings = EngineSettings(kind="vllm", model_name=name, model_path=Path(folder))
    for variable, value in vllm_environment(settings).items():
        os.environ.setdefault(variable, value)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    sys.argv = [
        "api_server",
        *vllm_arguments(settings),
        *("--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log"),
        # As Millrace's engine does on a CPU.
        *("--distributed-executor-backend=uni", "--enforce-eager"),
    ]
    threading.Thread(target=_report_when_healthy, args=(port,), daemon=True).start()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


def _report_when_healthy(port: int) -> None:
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=_REQUEST_S_MAX):
                report_line("ready", str(port))
                return
        except (urllib.error.URLError, OSError):
            time.sleep(_POLL_S)


def _end_with_parent() -> None:
    wait_for_line()
    os._exit(0)


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
