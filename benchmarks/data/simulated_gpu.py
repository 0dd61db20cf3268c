"""The simulated GPU of benchmarks of scheduling, and files of items for it.

About a model of 8 B parameters on one H100: 64 sequences decode 12,000 tokens a second together.
The engine is simulated, and every answer says so: figures say how work is ordered and how well an
engine is used, not what a model does.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.data.input_files import CHAT, InputFile, InputLine, corpus, custom_id
from benchmarks.data.published_traces import Lengths

MODEL: Final = "simulated"
SLOTS: Final = 64
_BYTES_PER_TOKEN: Final = 4  # of the simulated engine, which counts the whole body
_STEP_MS, _SEQUENCE_MS, _PROMPT_TOKEN_MS = 4.0, 0.02, 0.016


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """A GPU that is `speed` times as fast."""

    speed: float = 1.0

    @property
    def env(self) -> Mapping[str, str]:
        """The variables of its time model."""
        return {
            "MILLRACE_ENGINE_SIMULATED_STEP_MS": str(_STEP_MS / self.speed),
            "MILLRACE_ENGINE_SIMULATED_STEP_SEQUENCE_MS": str(_SEQUENCE_MS / self.speed),
            "MILLRACE_ENGINE_SIMULATED_STEP_PROMPT_TOKEN_MS": str(_PROMPT_TOKEN_MS / self.speed),
        }

    @property
    def prompt_token_s(self) -> float:
        """The engine time of a prompt token."""
        return _PROMPT_TOKEN_MS / 1000 / self.speed

    @property
    def output_token_s(self) -> float:
        """The engine time of an output token while all slots are in use."""
        return (_STEP_MS / SLOTS + _SEQUENCE_MS) / 1000 / self.speed

    def seconds(self, prompt: float, output: float) -> float:
        """Return the engine time of tokens while all slots are in use: of a second there is one."""
        return prompt * self.prompt_token_s + output * self.output_token_s


def options() -> tuple[str, ...]:
    """Return the options of `millrace up`."""
    return ("--simulated-concurrency", str(SLOTS))


def chat_body(lengths: Lengths, number: int, *, stream: bool = False) -> bytes:
    """Return a chat whose body has the bytes of its prompt tokens, and asks for its output."""
    body: dict[str, object] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": ""}],
        "max_tokens": lengths.output,
    }
    if stream:
        body["stream"] = True
    missing = max(1, lengths.prompt * _BYTES_PER_TOKEN - len(msgspec.json.encode(body)))
    text = corpus()
    first = number * 997 % (len(text) - missing)
    body["messages"] = [{"role": "user", "content": text[first : first + missing]}]
    return msgspec.json.encode(body)


def trace_file(path: Path, lengths: Sequence[Lengths]) -> InputFile:
    """Write one chat a line."""
    bodies = (chat_body(one, number) for number, one in enumerate(lengths))
    return write_chats(path, bodies)


def write_chats(path: Path, bodies: Iterable[bytes]) -> InputFile:
    """Write an input file of these bodies."""
    count = 0
    with path.open("wb") as file:
        for body in bodies:
            line = InputLine(custom_id(count), "POST", CHAT, msgspec.Raw(body))
            file.write(msgspec.json.encode(line) + b"\n")
            count += 1
    return InputFile(path, count)
