"""Whether somebody still waits for an online call: what `wanted` is to batches."""

import asyncio
from typing import Final

from core.clock import Clock
from gpu_consumers.inflight.online_call import Cut, OnlineCall
from topics.tail_readers.caller_heartbeats import CallerHeartbeatReader
from topics.tail_readers.job_controls import JobControlReader

NEWS_WAIT_S: Final = 1.5
"""How long a call waits, without a place in the engine, for a sign of its silent caller."""

_NEWS_LOOK_S: Final = 0.05


class WantedCalls:
    """Judges online calls; used on the event loop."""

    def __init__(
        self, callers: CallerHeartbeatReader, controls: JobControlReader, clock: Clock
    ) -> None:
        """Both are followed by others."""
        self._callers, self._controls, self._clock = callers, controls, clock

    def why_over(self, call: OnlineCall) -> Cut | None:
        """Return why nobody needs the call any more; None while somebody does.

        Raises what ended the following of callers.
        """
        if self._controls.is_closed(call.request_id):
            return Cut.CLOSED
        caller = call.job.call
        if caller is None or not self._callers.is_abandoned(call.job, since_s=call.arrived_s):
            return None
        if self._callers.is_expired(call.job):
            return Cut.DEADLINE
        is_dead = self._callers.is_dead(caller.caller_id, since_s=call.arrived_s)
        return Cut.SILENT if is_dead else Cut.CALLER

    async def why_not_begun(self, call: OnlineCall) -> Cut | None:
        """As `why_over`, of a call that waits, and from now on may wait too long.

        One that may have run before has begun in time, or its caller or its row knows better.
        A silent caller may be heard late: after a broker's restart, say. One that is still silent
        then, though nobody can know whether it is dead, has its call begun.
        """
        cut = self.why_over(call)
        until_s = call.arrived_s + NEWS_WAIT_S
        while self._may_be_heard(call, cut) and self._clock.monotonic_s() < until_s:
            call.awaits_news = True
            await asyncio.sleep(_NEWS_LOOK_S)
            cut = self.why_over(call)
        call.awaits_news = False
        if cut is not None or call.may_have_run:
            return cut
        patience_s = self._callers.start_wait_left_s(call.job)
        if patience_s is not None:
            if patience_s <= 0:
                return Cut.OVERDUE
            call.wait_at_most(patience_s)
        return None

    def _may_be_heard(self, call: OnlineCall, cut: Cut | None) -> bool:
        if cut is not None or call.is_durable or call.job.call is None:
            return cut is Cut.SILENT
        return self._callers.is_silent(call.job.call.caller_id)

    def stop_if_over(self, call: OnlineCall) -> None:
        """Cut a call short that runs for nobody; of one that awaits news silence proves nothing."""
        cut = self.why_over(call)
        if cut is not None and not (cut is Cut.SILENT and call.awaits_news):
            call.stop(cut)
