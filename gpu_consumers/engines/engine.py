"""The interface of engines to the replica; each passes the same conformance suite."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import msgspec

_ERROR_STATUS_MIN: Final = 400


@dataclass(frozen=True, slots=True)
class SlotCounts:
    """Slots in use, and what waits for one."""

    bulk: int
    online: int
    waiting: int  # online calls without a slot
    idle: int = 0  # bulk items without a slot although one is free for bulk
    refused: int = 0  # refusals of a busy upstream since the start: they show that it responds


@dataclass(frozen=True, slots=True)
class EngineUse:
    """How full an engine is."""

    waiting: int = 0  # sequences that wait in the engine
    kv_use: float = 0.0  # part of its KV cache that is in use, 0 to 1; 0 if it has no figure


class EngineAnswer(msgspec.Struct, frozen=True, gc=False):
    """The HTTP-shaped answer to one item: success below 400, the OpenAI error envelope above.

    A struct because one is built per item, and a dataclass costs ten times as much.
    """

    status_code: int
    body: bytes  # JSON
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def is_error(self) -> bool:
        """Whether the item failed."""
        return self.status_code >= _ERROR_STATUS_MIN


OnAnswer = Callable[[int, EngineAnswer], None]
"""Called once per item, on the event loop, with its position in the sequence given to `execute`."""

EmitEvent = Callable[[bytes], None]
"""Called on the event loop with the JSON payload of each event of a stream, in order."""


@dataclass(slots=True)
class UsageMeter:
    """Reports the start of one online call, and its token usage so far.

    An engine that knows the usage of a running call sets `with_usage` when the call starts. It is
    called only when the call is aborted, so an event costs nothing.
    """

    on_start: Callable[[], None] = lambda: None
    """Called when the call has a slot and is about to run, once or more."""

    with_usage: Callable[[EngineAnswer], EngineAnswer] = lambda answer: answer
    """Returns an answer with the usage of the prompt and of the output so far.

    The output of a stream is what was emitted, that of a whole answer what was generated.
    """


class Engine(Protocol):
    """Runs request bodies of the OpenAI API; one model version, one process.

    The field `model` of a body chooses nothing: a client may write an alias or `name@version`. The
    engine runs its model, or the adapter of an `execute` or `serve`, and answers show the field as
    it was written.
    """

    @property
    def concurrency(self) -> int:
        """Items worth executing at once; may change while running."""

    @property
    def bulk_concurrency(self) -> int:
        """Bulk items worth executing at once: `concurrency` less the headroom, or fewer."""

    @property
    def headroom(self) -> int:
        """Slots of `concurrency` that bulk items leave free for online calls; fewer than all."""

    @property
    def slots(self) -> SlotCounts:
        """Slots in use and waiting online calls; all 0 while idle."""

    @property
    def engine_hash(self) -> str:
        """Digest of engine, device and options, 64 hex digits; empty before `start` or unknown."""

    @property
    def adapters(self) -> Collection[str]:
        """Versions of the adapters that are loaded now."""

    async def start(self) -> None:
        """Load and warm up; return when an item can run."""

    async def execute(
        self, endpoint: str, bodies: Sequence[bytes], finished: OnAnswer, adapter: str = ""
    ) -> None:
        """Run every body against `endpoint`, reporting each as it ends, in any order.

        `adapter` is the version of an adapter that is applied to the model; empty for none. Items
        of an adapter that cannot be loaded fail.

        Cancelling aborts the items that still run. Items not reported when this raises have no
        answer. Raises PoolUnavailableError when the pool is unavailable (requeue the rest, charge
        no attempt), PoolBusyError at the end when it accepted all but some, EngineOutOfMemoryError
        or MemoryError when the items were too much at once and the engine survived,
        EngineDeadError when the process must end.
        """

    async def serve(
        self,
        endpoint: str,
        body: bytes,
        emit: EmitEvent | None,
        meter: UsageMeter | None = None,
        adapter: str = "",
    ) -> EngineAnswer:
        """Run one online call, ahead of every bulk item that has not started.

        `adapter`: see `execute`.

        Without `emit` the call runs like an item. With `emit`, a body that requests a stream has
        its events emitted as they come, and the answer is then success (200, an empty body), a
        refusal with nothing emitted, or the error that interrupted the stream. Its usage is that
        of the call, or of the emitted part, whether or not the client requested usage. A body or
        endpoint that does not stream emits nothing. `meter` is notified of the start and reports
        the usage of a running call, if the engine knows it.

        Cancelling aborts the call and frees its slot. Raises PoolUnavailableError if nothing was
        emitted; EngineDeadError.
        """

    async def stop(self) -> None:
        """Release the engine and its processes; nothing is executing."""


@runtime_checkable
class ReportsUse(Protocol):
    """The optional part of an `Engine` that knows how full it is."""

    @property
    def use(self) -> EngineUse:
        """How full the engine is now."""


@runtime_checkable
class CanSleep(Protocol):
    """The optional part of an `Engine` that frees its memory while it waits for its first work.

    Nothing executes from `sleep` until `wake` has returned.
    """

    @property
    def can_sleep(self) -> bool:
        """Whether the device and the options of the started engine allow it."""

    async def sleep(self) -> None:
        """Free the memory of the device; the weights stay in that of the host.

        Raises EngineDeadError.
        """

    async def wake(self) -> None:
        """Undo `sleep`; return when an item can run. Raises EngineDeadError."""


def use_of(engine: object) -> EngineUse:
    """Return how full an engine is; zeros of one that does not know."""
    return engine.use if isinstance(engine, ReportsUse) else EngineUse()
