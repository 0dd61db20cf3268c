"""Cuts short what runs for jobs that are closed or expired: their slots are free for others.

So nothing begins inside the engine's own queue, either, once its job is over.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from gpu_consumers.cancellation.wanted import Wanted
from gpu_consumers.inflight.batch_run import BatchRun, Cut

LOOK_S: Final = 0.5
"""Between two looks, unless a control state or a deadline comes first."""

_SOON_S: Final = 0.01


class Cutting:
    """Looks at the runs of a lane when something may have made them useless."""

    def __init__(self, runs: Callable[[], Iterable[BatchRun]], wanted: Wanted) -> None:
        """`runs` returns what has begun and not ended."""
        self._runs, self._wanted = runs, wanted
        self._changed = asyncio.Event()

    def changed(self) -> None:
        """A control state has changed; call it on the event loop."""
        self._changed.set()

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            wait_s = self.look()
            try:
                async with asyncio.timeout(wait_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
            self._changed.clear()

    def look(self) -> float:
        """Cut what is useless; return the seconds until the next look.

        What others have in the same batch runs on: nobody may end it with a cancel of their own.
        """
        wait_s = LOOK_S
        for run in list(self._runs()):
            jobs = list({id(job): job for job, _ in run.items}.values())
            useless = [job for job in jobs if self._wanted.is_useless(job)]
            if useless and len(useless) == len(jobs):
                run.stop(Cut.OVER)
                continue
            for job in useless:
                run.give_up(job)
            left = [self._wanted.left_s(job) for job in jobs if job not in useless]
            known = [max(_SOON_S, left_s) for left_s in left if left_s is not None]
            wait_s = min([wait_s, *known])
        return wait_s
