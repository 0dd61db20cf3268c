"""Requeues batches of a model that is not here, without an attempt and without a charge.

A predecessor of another version leaves such batches in the partitions of this replica, and batchers
of earlier releases send them.
"""

import asyncio
from typing import Final

from gpu_consumers import metrics
from gpu_consumers.flow_control.warm_model import WarmModel
from gpu_consumers.inflight.batch_run import BatchAbortReason, BatchRun

OTHER_VERSION_WAIT_S: Final = 0.5
"""Time until a batch is requeued whose model this replica does not have."""


def mark_other_version(run: BatchRun, served: WarmModel) -> None:
    """Note, and count, that the items of a new batch may not run here."""
    run.has_other_version = not all(served.serves(part.job) for part in run.delivered.batch.parts)
    if run.has_other_version:
        metrics.OTHER_VERSION_ITEMS.inc(len(run.items))


async def abort_other_version(run: BatchRun) -> None:
    """Abort a batch whose model is not here, so that its items are requeued.

    They hold their credit for a moment: a batcher of an earlier release, which knows no versions,
    may send them here again. A batch that is aborted already does not wait.
    """
    await run.until_aborted(asyncio.sleep(OTHER_VERSION_WAIT_S))
    run.abort(BatchAbortReason.REQUEUE)
