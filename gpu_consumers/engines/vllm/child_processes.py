"""Runs first in each process that vLLM starts, before anything of vLLM is imported.

`multiprocessing` makes a child import its parent's main module unless that is a `__main__`, as a
role's is. `use_as_child_main_module` names this module instead.
"""

import ctypes
import importlib.util
import os
import signal
import sys

from core.runtime.garbage_collection import collect_rarely
from core.runtime.logs import configure_logs
from gpu_consumers.engines.vllm.log_redaction import redact_vllm_logs

_PR_SET_PDEATHSIG = 1
_THIS_MODULE = "gpu_consumers.engines.vllm.child_processes"
_PARENT_VARIABLE = "_MILLRACE_SPAWNED_BY"
"""Variable with the parent's process id; `multiprocessing` provides it too late."""


def use_as_child_main_module() -> None:
    """Make processes spawned from now on import this module as their main module."""
    sys.modules["__main__"].__spec__ = importlib.util.find_spec(_THIS_MODULE)
    os.environ[_PARENT_VARIABLE] = str(os.getpid())
    redact_vllm_logs()


def die_with_parent() -> None:
    """End this process when its parent ends, however that happens (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.environ.get(_PARENT_VARIABLE) != str(os.getppid()):
        os._exit(1)  # the parent ended before the line above
    os.environ[_PARENT_VARIABLE] = str(os.getpid())  # for children of this process


if __name__ == "__mp_main__":
    die_with_parent()
    collect_rarely()
    configure_logs("gpu-consumer")
    redact_vllm_logs()
