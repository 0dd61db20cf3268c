"""What the consumer loop needs of an engine; each engine passes the same conformance suite."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The HTTP-shaped answer to one item: success below 400, the OpenAI error envelope above.

    A struct, not a dataclass: one is built per item, and this costs a tenth.
    """

    status_code: int
    body: bytes  # JSON
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0


Finished = Callable[[int, Answer], None]
"""Called once per item, on the event loop, with its position in the sequence given to `execute`."""


class Engine(Protocol):
    """Runs request bodies of the OpenAI API; one model version, one process."""

    @property
    def concurrency(self) -> int:
        """Items worth holding in execution at once; may change while running."""
        ...

    async def start(self) -> None:
        """Load and warm up; return when an item can run."""
        ...

    async def execute(self, endpoint: str, bodies: Sequence[bytes], finished: Finished) -> None:
        """Run every body against `endpoint`, reporting each as it ends, in any order.

        Cancelling the call aborts what still runs. Items not reported when it raises have no
        answer. Raises PoolUnavailableError when the pool is away (hand the rest back, charge no
        attempt), EngineDeadError when the process must end.
        """
        ...

    async def stop(self) -> None:
        """Release the engine and its processes; nothing is in execution any more."""
        ...
