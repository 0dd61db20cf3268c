"""What each process that vLLM starts runs first, before it imports anything of vLLM.

`multiprocessing` has a child import the main module of its parent, but none named `__main__`, which
is what a role is: `import_this_first` names this one instead.
"""

import ctypes
import importlib.util
import logging
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_DUMP = "vllm.logging_utils.dump_input"
_HERE = "gpu_consumers.engines.vllm_children"
_PARENT = "_MILLRACE_SPAWNED_BY"
"""Variable with the id of the process; `multiprocessing` says it later than we must know."""


def import_this_first() -> None:
    """Have processes that are spawned from now on import this module as their main one."""
    sys.modules["__main__"].__spec__ = importlib.util.find_spec(_HERE)
    os.environ[_PARENT] = str(os.getpid())
    keep_texts_out_of_logs()


def keep_texts_out_of_logs() -> None:
    """Silence what prints all that a failing step was given, texts of clients among it.

    Not by a level: vLLM's configuration of its logs, which comes later, resets levels.
    """
    logging.getLogger(_DUMP).disabled = True


def die_with_parent() -> None:
    """End with the process that started this one, however that one ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.environ.get(_PARENT) != str(os.getppid()):
        os._exit(1)  # it ended before the line above
    os.environ[_PARENT] = str(os.getpid())  # of those that this one starts


if __name__ == "__mp_main__":
    die_with_parent()
    keep_texts_out_of_logs()
