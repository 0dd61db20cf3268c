"""Liveness: whether a job or a caller still needs items that wait or run on this replica.

Dropping them only saves work. `results` alone decides which outcomes count. The clock of this host
is not used: batchers publish the time of the database.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Final

from core.clock import Clock, DatabaseTime
from gpu_consumers.inflight.batch_run import BatchAbortReason, BatchRun
from gpu_consumers.inflight.online_call import CallAbortReason, OnlineCall
from topics.records.records import JobRef
from topics.tail_readers.caller_liveness import CallerHeartbeatReader
from topics.tail_readers.job_controls import JobControlReader, effective_deadline_s, obsolete_reason

LATE_S_MAX: Final = 0.5
"""Margin before a deadline in which no item starts. It covers the age of the published time and the
delay until an item reaches its engine on a host that is short of CPU."""

_RUNNING_IS_LIVE: Final = frozenset({None, "void"})  # running items of a paused job still count

ABORT_CHECK_S: Final = 0.5
"""Longest time between two checks; a control record or a deadline causes an earlier one."""

_ABORT_CHECK_S_MIN: Final = 0.01

HEARTBEAT_WAIT_S: Final = 1.5
"""How long a call of a silent caller waits for a heartbeat, without a slot of the engine."""

_HEARTBEAT_POLL_S: Final = 0.05


class BatchLiveness:
    """Decides whether items of a job still count: its control state and its deadline."""

    def __init__(self, controls: JobControlReader, time: DatabaseTime, clock: Clock) -> None:
        """Items do not expire before `time` is known."""
        self._controls, self._time, self._clock = controls, time, clock

    def drop_reason(self, job: JobRef) -> str | None:
        """Return why an item of the job must not start any more, None if it may.

        Raises the failure of the reader of control records.
        """
        return obsolete_reason(job, self._controls.newer_control(job), self._now_s())

    def is_obsolete(self, job: JobRef) -> bool:
        """Return whether even running items of the job are of no use."""
        return self.drop_reason(job) not in _RUNNING_IS_LIVE

    def remaining_s(self, job: JobRef) -> float | None:
        """Return the seconds until no item of the job may start; None while the time is unknown."""
        now_s = self._now_s()
        if now_s is None:
            return None
        return effective_deadline_s(job, self._controls.newer_control(job)) - now_s

    def _now_s(self) -> float | None:
        now_s = self._time.now_s(self._clock.monotonic_s())
        return None if now_s is None else now_s + LATE_S_MAX


class ObsoleteBatchAborter:
    """Aborts the execution of closed and expired jobs, which frees their slots of the engine.

    So no item starts from the engine's own queue either once its job is closed or expired.
    """

    def __init__(
        self,
        runs: Callable[[], Iterable[BatchRun]],
        liveness: BatchLiveness,
        control_changed: asyncio.Event,
    ) -> None:
        """`control_changed` is set when a control record has arrived: then it checks at once."""
        self._runs, self._liveness, self._changed = runs, liveness, control_changed

    async def run(self) -> None:
        """Check repeatedly until cancelled."""
        while True:
            wait_s = self.run_once()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            self._changed.clear()

    def run_once(self) -> float:
        """Abort obsolete executions; return the seconds until the next check is due.

        In a batch of several jobs, only the items of obsolete jobs are aborted.
        """
        wait_s = ABORT_CHECK_S
        for run in list(self._runs()):
            jobs = list({id(job): job for job, _ in run.items}.values())
            obsolete = [job for job in jobs if self._liveness.is_obsolete(job)]
            if obsolete and len(obsolete) == len(jobs):
                run.abort(BatchAbortReason.OBSOLETE)
                continue
            for job in obsolete:
                run.abort_job(job)
            remaining = [self._liveness.remaining_s(job) for job in jobs if job not in obsolete]
            known = [max(_ABORT_CHECK_S_MIN, left_s) for left_s in remaining if left_s is not None]
            wait_s = min([wait_s, *known])
        return wait_s


class CallLiveness:
    """Decides whether the caller, the deadline and the job of a call still allow it."""

    def __init__(
        self, callers: CallerHeartbeatReader, controls: JobControlReader, clock: Clock
    ) -> None:
        self._callers, self._controls, self._clock = callers, controls, clock

    def abort_reason(self, call: OnlineCall) -> CallAbortReason | None:
        """Return why nobody needs the call any more, None while it is needed.

        Raises the failure of the reader of callers.
        """
        if self._controls.is_closed(call.request_id):
            return CallAbortReason.CLOSED
        caller = call.job.call
        if caller is None or not self._callers.is_abandoned(call.job, since_s=call.arrived_s):
            return None
        if self._callers.is_expired(call.job):
            return CallAbortReason.DEADLINE
        is_dead = self._callers.is_dead(caller.caller_id, since_s=call.arrived_s)
        return CallAbortReason.SILENT if is_dead else CallAbortReason.CALLER

    async def check_before_start(self, call: OnlineCall) -> CallAbortReason | None:
        """Return why the call must not start; otherwise limit its wait for a slot.

        The heartbeat of a silent caller may be late, for example after a restart of the broker: a
        call waits `HEARTBEAT_WAIT_S` for it, and starts when the caller is not known to be dead
        then. The limit does not apply to a redelivered call, which may have started in time.
        """
        reason = self.abort_reason(call)
        until_s = call.arrived_s + HEARTBEAT_WAIT_S
        while self._may_send_heartbeat(call, reason) and self._clock.monotonic_s() < until_s:
            call.awaits_heartbeat = True
            await asyncio.sleep(_HEARTBEAT_POLL_S)
            reason = self.abort_reason(call)
        call.awaits_heartbeat = False
        if reason is not None or call.is_redelivered:
            return reason
        patience_s = self._callers.start_wait_left_s(call.job)
        if patience_s is not None:
            if patience_s <= 0:
                return CallAbortReason.OVERDUE
            call.abort_unless_started(patience_s)
        return None

    def _may_send_heartbeat(self, call: OnlineCall, reason: CallAbortReason | None) -> bool:
        if reason is not None or call.is_durable or call.job.call is None:
            return reason is CallAbortReason.SILENT
        return self._callers.is_silent(call.job.call.caller_id)

    def abort_if_obsolete(self, call: OnlineCall) -> None:
        """Abort a call that nobody needs; silence counts only once the call has stopped waiting."""
        reason = self.abort_reason(call)
        if reason is not None and not (reason is CallAbortReason.SILENT and call.awaits_heartbeat):
            call.abort(reason)
