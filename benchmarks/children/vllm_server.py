"""vLLM's own HTTP server on a model folder: `python -m benchmarks.children.vllm_server FOLDER NAME`.

With the options of our vLLM engine, parsed by vLLM from the same command line. Says `@ready PORT`
once it is healthy and ends with its parent.
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

from benchmarks.children.line_child import die_with_parent, say, wait_for_line
from gpu_consumers.engines.settings import EngineSettings
from gpu_consumers.engines.vllm.vllm_engine import vllm_arguments, vllm_environment

_POLL_S = 0.2
_ASK_S = 5.0


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
        # As our engine does on a CPU.
        *("--distributed-executor-backend=uni", "--enforce-eager"),
    ]
    threading.Thread(target=_tell_when_healthy, args=(port,), daemon=True).start()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)


def _tell_when_healthy(port: int) -> None:
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=_ASK_S):
                say("ready", str(port))
                return
        except (urllib.error.URLError, OSError):
            time.sleep(_POLL_S)


def _end_with_parent() -> None:
    wait_for_line()
    os._exit(0)


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
