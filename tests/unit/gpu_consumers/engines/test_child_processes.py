"""Goal: processes that vLLM starts end with their role."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

PARENT = """
import multiprocessing, sys, time
from gpu_consumers.engines.vllm.child_processes import use_as_child_main_module

if __name__ == "__main__":
    use_as_child_main_module()
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    child.start()
    print(child.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("is_package", [True, False])
def test_child_process_ends_with_its_killed_parent(tmp_path: Path, is_package: bool) -> None:
    package = tmp_path / "a_role"
    package.mkdir()
    program = package / "__main__.py"
    program.write_text(PARENT)
    (package / "__init__.py").touch()
    argv = [sys.executable, "-m", "a_role"] if is_package else [sys.executable, str(program)]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        tree = psutil.Process(parent.pid).children(recursive=True)  # a tracker of resources, too
        assert child in tree
        os.kill(parent.pid, signal.SIGKILL)
    gone, alive = psutil.wait_procs(tree, timeout=10)
    for process in alive:
        process.kill()
    assert child in gone


SHOWS_THRESHOLD = """
import multiprocessing
from gpu_consumers.engines.vllm.child_processes import use_as_child_main_module

if __name__ == "__main__":
    use_as_child_main_module()
    show = "import gc; print(gc.get_threshold()[0])"
    child = multiprocessing.get_context("spawn").Process(target=exec, args=(show,))
    child.start()
    child.join()
"""


def test_child_process_collects_garbage_rarely(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SHOWS_THRESHOLD)
    env = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    shown = subprocess.run(
        [sys.executable, program], env=env, capture_output=True, check=True, timeout=30
    )
    assert shown.stdout.strip() == b"50000", shown.stderr


def test_role_does_not_end_with_its_parent() -> None:
    program = (
        "import ctypes, gpu_consumers.__main__\n"
        "signal = ctypes.c_int(-1)\n"
        "ctypes.CDLL(None).prctl(2, ctypes.byref(signal), 0, 0, 0)\n"  # PR_GET_PDEATHSIG
        "print(signal.value)"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert said.stdout.strip() == b"0"
