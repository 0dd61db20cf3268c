"""What the consumer loop needs of an engine; each engine passes the same conformance suite."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from gpu_consumers.engines.engine_slots import SlotCounts


class EngineAnswer(msgspec.Struct, frozen=True, gc=False):
    """The HTTP-shaped answer to one item: success below 400, the OpenAI error envelope above.

    A struct, not a dataclass: one is built per item, and this costs a tenth.
    """

    status_code: int
    body: bytes  # JSON
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


OnItemFinished = Callable[[int, EngineAnswer], None]
"""Called once per item, on the event loop, with its position in the sequence given to `execute`."""

EmitEvent = Callable[[bytes], None]
"""Called on the event loop with the JSON payload of each event of a stream, in order."""


class UsageMeter:
    """Whether one call has begun, and what its stream has spent so far.

    Its engine sets `counted` when the stream begins. That is read when a call is cut, so a piece
    costs nothing.
    """

    __slots__ = ("began", "counted")

    def __init__(self, began: Callable[[], None] = lambda: None) -> None:
        """Nothing was emitted."""
        self.began = began
        """Called when the call has a place and is about to run, once or more."""
        self.counted: Callable[[EngineAnswer], EngineAnswer] = _unchanged
        """Returns an answer with the counts of the prompt and of what was emitted until now."""


def _unchanged(answer: EngineAnswer) -> EngineAnswer:
    return answer


class Engine(Protocol):
    """Runs request bodies of the OpenAI API; one model version, one process."""

    @property
    def concurrency(self) -> int:
        """Items worth holding in execution at once; may change while running."""
        ...

    @property
    def headroom(self) -> int:
        """Of `concurrency`, what bulk items leave free for online calls; less than all of it."""
        ...

    @property
    def slots(self) -> SlotCounts:
        """What runs now and what online waits for; all 0 once nothing is asked for."""
        ...

    async def start(self) -> None:
        """Load and warm up; return when an item can run."""
        ...

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnItemFinished
    ) -> None:
        """Run every body against `endpoint`, reporting each as it ends, in any order.

        Cancelling the call aborts what still runs. Items not reported when it raises have no
        answer. Raises PoolUnavailableError when the pool is away (hand the rest back, charge no
        attempt), PoolBusyError at the end when it took all but some, EngineOutOfMemoryError or
        MemoryError when this was too much at once and the engine lives on, EngineDeadError when
        the process must end.
        """
        ...

    async def serve(
        self, endpoint: str, body: bytes, emit: EmitEvent | None, meter: UsageMeter | None = None
    ) -> EngineAnswer:
        """Run one online call, ahead of every bulk item that has not started.

        Without `emit` it is an item as any other. With it, a body that asks to stream has its
        events emitted as they come, and the answer then is a good end (200, an empty body), a
        refusal with nothing emitted, or the error that broke the stream off. Its counts are those
        of the whole call, or of the part that was emitted; they never depend on whether the client
        asked for usage. A body or endpoint that does not stream has its answer whole: nothing is
        emitted. `meter` is told that the call begins, and tells the counts of a stream before it
        ends.

        Cancelling aborts the call and frees its place. Raises PoolUnavailableError, nothing
        emitted yet; EngineDeadError.
        """
        ...

    async def stop(self) -> None:
        """Release the engine and its processes; nothing is in execution any more."""
        ...
