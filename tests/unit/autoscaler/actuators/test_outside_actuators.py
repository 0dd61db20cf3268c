"""Goal: a command or webhook of the operator carries out orders, or fails by a name, bounded."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from autoscaler.actuators.actuator import (
    ActuatorConflictError,
    ActuatorDeniedError,
    ActuatorError,
    ActuatorTimeoutError,
    ForeignScalerError,
    KindCount,
    PoolOrder,
    StaleEpochError,
    UnexpectedAnswerError,
    UnknownPoolError,
)
from autoscaler.actuators.outside.command_actuator import CommandActuator
from autoscaler.actuators.outside.order_messages import (
    check_applied,
    failure_of,
    observe_message,
    order_message,
    read_observed,
)
from core.webhook_signatures import secret_text
from tests.support.actuator_conformance import order
from tests.support.actuator_platforms import WebhookPlatform, webhook_platform
from tests.support.until import until_true

ORDER = PoolOrder(
    pool="chat", epoch=5, sequence=2, kinds=(KindCount(gpu_type="l4", replicas=3),), standby=1
)


def script(text: str, timeout_s: float = 8.0, env: dict[str, str] | None = None) -> CommandActuator:
    return CommandActuator("main", [sys.executable, "-I", "-S", "-c", text], timeout_s, env or {})


def answers(**fields: object) -> bytes:
    return json.dumps({"pool": "chat", "epoch": 5, **fields}).encode()


@pytest.fixture
async def webhook(tmp_path: Path) -> AsyncIterator[WebhookPlatform]:
    async with webhook_platform(tmp_path) as platform:
        yield platform


def test_an_order_is_json_with_all_that_is_to_be_done() -> None:
    assert json.loads(order_message("main", ORDER)) == {
        "action": "apply",
        "actuator": "main",
        "pool": "chat",
        "epoch": 5,
        "sequence": 2,
        "kinds": [{"gpu_type": "l4", "zone": "", "spot": False, "replicas": 3}],
        "standby": 1,
        "removals": [],
    }
    assert json.loads(observe_message("main", "chat")) == {
        "action": "observe",
        "actuator": "main",
        "pool": "chat",
    }


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (answers(epoch=6), StaleEpochError),
        (answers(epoch=4), UnexpectedAnswerError),
        (answers(epoch=-1), UnexpectedAnswerError),
        (answers(epoch=True), UnexpectedAnswerError),
        (answers(pool="other"), UnexpectedAnswerError),
        (b"", UnexpectedAnswerError),
        (b"[" * 100_000, UnexpectedAnswerError),
        (b"\xff", UnexpectedAnswerError),
        (b'{"pool":"chat"}' + b" " * 300_000, UnexpectedAnswerError),
    ],
)
def test_an_answer_that_cannot_be_true_is_refused(
    answer: bytes, error: type[ActuatorError]
) -> None:
    with pytest.raises(error):
        check_applied(answer, ORDER)


@pytest.mark.parametrize(
    ("kinds", "error"),
    [
        ([{"replicas": 10_001}], UnexpectedAnswerError),
        ([{"replicas": 1e400}], UnexpectedAnswerError),
        ([{"replicas": 1}, {"replicas": 2}], UnexpectedAnswerError),
        ([{"zone": "a", "replicas": 9_000}, {"replicas": 9_000}], UnexpectedAnswerError),
    ],
)
def test_absurd_replicas_are_refused(kinds: object, error: type[ActuatorError]) -> None:
    with pytest.raises(error):
        read_observed(answers(kinds=kinds), "chat", "main")


def test_an_observation_of_another_actuator_is_refused() -> None:
    assert read_observed(answers(actuator="main"), "chat", "main").epoch == 5
    with pytest.raises(ForeignScalerError):
        read_observed(answers(actuator="two"), "chat", "main")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b'{"code":"stale_epoch"}', StaleEpochError),
        (b'{"code":"foreign_scaler"}', ForeignScalerError),
        (b'{"code":"unknown_pool"}', UnknownPoolError),
        (b'{"code":"else"}', ActuatorConflictError),
        (b'{"code":3}', ActuatorConflictError),
        (b"no JSON", ActuatorConflictError),
    ],
)
def test_a_refusal_is_the_error_that_it_names(answer: bytes, error: type[ActuatorError]) -> None:
    assert type(failure_of(answer, ActuatorConflictError)) is error


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (1, ActuatorError),
        (3, StaleEpochError),
        (4, ActuatorDeniedError),
        (5, ActuatorConflictError),
        (127, ActuatorError),
    ],
)
async def test_an_exit_code_is_an_error(code: int, error: type[ActuatorError]) -> None:
    with pytest.raises(ActuatorError) as raised:
        await script(f"raise SystemExit({code})").apply(ORDER)

    assert type(raised.value) is error


async def test_a_command_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ActuatorError, match="cannot be started"):
        await CommandActuator("main", ["/nowhere/scale"], 8.0, {}).apply(ORDER)


async def test_a_command_gets_no_variable_that_may_be_a_secret() -> None:
    text = (
        "import json, os; assert sorted(os.environ) in (['PATH'], ['LC_CTYPE', 'PATH']);"
        "print(json.dumps({'pool': 'chat', 'epoch': 5}))"
    )
    env = {"PATH": os.environ["PATH"], "MILLRACE_DATABASE_URL": "secret"}

    await script(text, env=env).apply(ORDER)


async def test_output_without_end_is_cut() -> None:
    with pytest.raises(UnexpectedAnswerError):
        await script("while True: print('x' * 65536)").apply(ORDER)


async def test_the_children_of_a_command_end_with_it(tmp_path: Path) -> None:
    """A child that lives on would change replicas after the order was given up."""
    note = tmp_path / "child"
    text = (
        "import subprocess, sys, pathlib\n"
        "child = subprocess.Popen(['sleep', '3600'])\n"
        f"pathlib.Path({str(note)!r}).write_text(str(child.pid))\n"
        "child.wait()\n"
    )
    call = asyncio.create_task(script(text, env={"PATH": os.environ["PATH"]}).apply(ORDER))
    await until_true(lambda: note.exists() and note.read_text())
    call.cancel()  # as a timeout does, whenever the child has started
    with pytest.raises(asyncio.CancelledError):
        await call

    def has_ended() -> bool:
        try:
            state = Path(f"/proc/{int(note.read_text())}/stat").read_text()
        except FileNotFoundError:
            return True
        return state.rpartition(")")[2].split()[0] == "Z"

    await until_true(has_ended)


async def test_a_command_that_hangs_is_given_up() -> None:
    with pytest.raises(ActuatorTimeoutError):
        await script("import time; time.sleep(3600)", 0.5).apply(ORDER)


async def test_the_pipes_of_a_command_are_closed_although_a_process_keeps_them(
    tmp_path: Path,
) -> None:
    """A process that left the group keeps the output open; this process must not."""

    def pipes() -> int:
        links = [str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
        return sum(link.startswith(("pipe:", "socket:")) for link in links)

    before, note = pipes(), tmp_path / "child"
    text = (
        "import subprocess, pathlib\n"
        "child = subprocess.Popen(['sleep', '3600'], start_new_session=True)\n"
        f"pathlib.Path({str(note)!r}).write_text(str(child.pid))\n"
        "child.wait()\n"
    )
    call = asyncio.create_task(script(text, env={"PATH": os.environ["PATH"]}).apply(ORDER))
    await until_true(lambda: note.exists() and note.read_text())
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    try:
        await until_true(lambda: pipes() <= before)
    finally:
        os.kill(int(note.read_text()), signal.SIGKILL)


async def test_a_caller_that_is_cancelled_ends_the_command(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    text = (
        "import os, pathlib, time\n"
        f"pathlib.Path({str(note)!r}).write_text(str(os.getpid()))\n"
        "time.sleep(3600)\n"
    )
    call = asyncio.create_task(script(text).apply(ORDER))
    await until_true(lambda: note.exists() and note.read_text())
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (web.json_response({"code": "stale_epoch"}, status=409), StaleEpochError),
        (web.json_response({"code": "foreign_scaler"}, status=409), ForeignScalerError),
        (web.Response(status=409), ActuatorConflictError),
        (web.Response(status=403), ActuatorDeniedError),
        (web.Response(status=404), UnknownPoolError),
        (web.Response(status=500), ActuatorError),
        (web.Response(status=204), UnexpectedAnswerError),
        (web.Response(status=302, headers={"location": "/orders"}), UnexpectedAnswerError),
        (web.Response(text="{}"), UnexpectedAnswerError),
        (web.Response(body=b"x" * 300_000), UnexpectedAnswerError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value.status),
)
async def test_an_answer_of_a_receiver_is_an_error(
    webhook: WebhookPlatform, answer: web.Response, error: type[ActuatorError]
) -> None:
    webhook.answer = answer
    with pytest.raises(ActuatorError) as raised:
        await (await webhook.open_actuator()).apply(order(webhook, 1, 2))

    assert type(raised.value) is error
    assert webhook.replicas() == {}


async def test_a_secret_that_was_rotated_is_read_again(webhook: WebhookPlatform) -> None:
    actuator = await webhook.open_actuator()
    right = webhook.secret_file.read_text()
    webhook.secret_file.write_text(secret_text(b"x" * 32))
    with pytest.raises(ActuatorDeniedError):
        await actuator.apply(order(webhook, 1, 2))

    webhook.secret_file.write_text(right)
    await actuator.apply(order(webhook, 1, 2))
    assert webhook.replicas() == {webhook.kinds[0]: 2}


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_dG9vIHNob3J0", "c2VjcmV0", "whsec_é"])
async def test_a_secret_that_is_none_sends_nothing(webhook: WebhookPlatform, text: str) -> None:
    webhook.secret_file.write_text(text)
    with pytest.raises(ActuatorDeniedError, match="signing secret"):
        await (await webhook.open_actuator()).apply(order(webhook, 1, 2))


async def test_a_receiver_that_is_gone_is_an_error(webhook: WebhookPlatform) -> None:
    webhook.url = "http://127.0.0.1:1/orders"
    with pytest.raises(ActuatorError, match="cannot be reached"):
        await (await webhook.open_actuator()).observe("chat")
