"""Cuts short what runs for jobs that are closed or expired: their slots are free for others.

So nothing begins inside the engine's own queue, either, once its job is over.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from gpu_consumers.batch_run import BatchRun, Cut
from gpu_consumers.wanted import Wanted

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

        What of a batch is still wanted is handed back. A batch that may have run before is left
        alone until nothing of it is wanted: handed back it would look like new.
        """
        wait_s = LOOK_S
        for run in list(self._runs()):
            jobs = {id(job): job for job, _ in run.items}.values()
            useless = [self._wanted.is_useless(job) for job in jobs]
            if not any(useless):
                left = [self._wanted.left_s(job) for job in jobs]
                known = [max(_SOON_S, left_s) for left_s in left if left_s is not None]
                wait_s = min([wait_s, *known])
            elif all(useless) or not run.delivery.may_have_run:
                run.stop(Cut.OVER)
        return wait_s
