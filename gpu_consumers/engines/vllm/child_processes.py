"""What each process that vLLM starts runs first, before it imports anything of vLLM.

`multiprocessing` has a child import the main module of its parent, but none named `__main__`, which
is what a role is: `use_as_child_main_module` names this one instead.
"""

import ctypes
import importlib.util
import os
import signal
import sys

from core.logs import configure_logs
from gpu_consumers.engines.vllm.log_redaction import redact_vllm_logs

_PR_SET_PDEATHSIG = 1
_HERE = "gpu_consumers.engines.vllm.child_processes"
_PARENT = "_MILLRACE_SPAWNED_BY"
"""Variable with the id of the process; `multiprocessing` says it later than we must know."""


def use_as_child_main_module() -> None:
    """Have processes that are spawned from now on import this module as their main one."""
    sys.modules["__main__"].__spec__ = importlib.util.find_spec(_HERE)
    os.environ[_PARENT] = str(os.getpid())
    redact_vllm_logs()


def die_with_parent() -> None:
    """End with the process that started this one, however that one ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.environ.get(_PARENT) != str(os.getppid()):
        os._exit(1)  # it ended before the line above
    os.environ[_PARENT] = str(os.getpid())  # of those that this one starts


if __name__ == "__mp_main__":
    die_with_parent()
    configure_logs("gpu-consumer")
    redact_vllm_logs()
