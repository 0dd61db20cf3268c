"""Python runs this at start where the folder is on PYTHONPATH: vLLM keeps its own statistics.

A replica switches them off, since nobody reads them. Here its `/metrics` shows them beside ours.
"""

from importlib.machinery import SourceFileLoader
from typing import Any

_execute = SourceFileLoader.exec_module


def _exec_module(self: SourceFileLoader, module: Any) -> None:
    _execute(self, module)
    if module.__name__ == "gpu_consumers.engines.vllm.vllm_engine":
        arguments = module.vllm_arguments
        module.vllm_arguments = lambda settings: [
            argument for argument in arguments(settings) if argument != "--disable-log-stats"
        ]


SourceFileLoader.exec_module = _exec_module  # type: ignore[assignment,method-assign]
