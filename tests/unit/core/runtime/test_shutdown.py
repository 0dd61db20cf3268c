"""Goal: every stop signal sets the stop event and interrupts work in its block."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

DEFAULT_SIGNALS = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
"""

WAITS = """
from core.runtime.shutdown import stop_on_signals
stop = stop_on_signals()
print("waiting", flush=True)
print("stopped" if stop.wait(20) else "went on", flush=True)
"""

INTERRUPTED = """
import signal
from core.runtime.shutdown import stop_on_signals
stop = stop_on_signals()
print("waiting", flush=True)
with stop._cond:  # as inside a wait, or inside the handler of a first signal
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.raise_signal(number)
    print("set", stop.is_set(), flush=True)
print("stopped" if stop.wait(20) else "went on", flush=True)
"""

WORKS = """
import time
from core.runtime.shutdown import interrupted_by_signals, stop_on_signals
stop = stop_on_signals()
try:
    with interrupted_by_signals():
        print("waiting", flush=True)
        time.sleep(20)
except KeyboardInterrupt:
    print("interrupted", stop.is_set(), flush=True)
print("stopped" if stop.wait(20) else "went on", flush=True)
time.sleep(20)
"""


def started(program: str, *before: str) -> subprocess.Popen[str]:
    prelude = "" if before else DEFAULT_SIGNALS
    process = subprocess.Popen(
        [*before, sys.executable, "-c", prelude + program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_sets_the_stop_event(number: signal.Signals) -> None:
    process = started(WAITS)
    process.send_signal(number)

    assert process.communicate(timeout=30)[0] == "stopped\n"
    assert process.returncode == 0


def test_nested_signals_set_the_stop_event() -> None:
    process = started(INTERRUPTED)
    assert process.stdout is not None
    limit = threading.Timer(10, process.kill)
    limit.start()
    try:
        assert process.stdout.readline() == "set True\n"
        assert process.stdout.readline() == "stopped\n"
    finally:
        limit.cancel()
        process.kill()
        process.communicate()


def test_an_ignored_sighup_stays_ignored() -> None:
    process = started(WAITS, "nohup")
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    process.terminate()

    assert process.communicate(timeout=30)[0] == "stopped\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_interrupts_work_and_a_second_sigint_has_the_default_effect(
    number: signal.Signals,
) -> None:
    process = started(WORKS)
    process.send_signal(number)
    assert process.stdout is not None
    assert process.stdout.readline() == "interrupted True\n"
    assert process.stdout.readline() == "stopped\n"
    if number == signal.SIGINT:
        process.send_signal(number)
        assert "KeyboardInterrupt" in process.communicate(timeout=30)[1]
    process.kill()
    process.communicate(timeout=30)
