"""Goal: a transaction that waits for the broker is never idle as long as a frozen process."""

from typing import Any

from jobs.store.transaction_keepalive import IDLE_S_MAX, wait_with_keepalive
from topics.clients.tracked_sends import WAIT_S_MAX


class Recorder:
    """Sends and a connection in one; records the time between two statements."""

    def __init__(self) -> None:
        self.idle_s = [0.0]

    def wait_unless_unavailable(self) -> bool:
        self.idle_s[-1] += WAIT_S_MAX
        return False

    def execute(self, _statement: object) -> None:
        self.idle_s.append(0.0)


def test_each_wait_follows_a_keepalive() -> None:
    recorder: Any = Recorder()
    for _ in range(3):
        assert not wait_with_keepalive(recorder, recorder)
    assert sum(recorder.idle_s) > IDLE_S_MAX > 1.5 * max(recorder.idle_s)
