"""`millrace chat`: a conversation with a model; answers are written as they stream in."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.api_client import (
    Client,
    QuietOption,
    drop_none,
    first_chat_model,
    with_client,
    with_stream_timeout,
)
from cli.exits import CommandError, ExitCode, describe_failure

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam as Message

_FATAL = frozenset({ExitCode.AUTH, ExitCode.NOT_FOUND})
"""Failures that would also fail the next prompt."""


@with_client
def chat(  # noqa: PLR0913, PLR0917  each one is an option of the command line
    client: Client,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="Send this prompt and exit; - reads stdin.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the model; default: the first that serves chat.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer in tokens.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="Sampling temperature; 0 is deterministic.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds for each answer; then exit 124.")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Talk to a model. Ctrl-C interrupts an answer, Ctrl-D ends.

    With --prompt, or with a pipe as stdin, send one prompt: stdout gets the answer only.
    """
    parameters = drop_none(
        model=model or first_chat_model(client),
        max_completion_tokens=max_tokens,
        temperature=temperature,
    )
    limited = with_stream_timeout(client) if timeout is None else _with_deadline(client, timeout)
    conversation = Conversation(limited, parameters, system=system, quiet=quiet)
    if prompt is None and sys.stdin.isatty():
        converse(conversation, _typed_lines)
        return
    conversation.send(read_stdin() if prompt in {None, "-"} else str(prompt))


_GRACE_S = 2.0
"""Time after the deadline in which the server reports that it has passed."""


def _with_deadline(client: Client, timeout_s: float) -> Client:
    """Return the client with a deadline for each call and without retries."""
    milliseconds = str(max(1, round(timeout_s * 1000)))
    return client.with_options(
        max_retries=0,
        timeout=timeout_s + _GRACE_S,
        default_headers={"X-Request-Timeout-Ms": milliseconds},
    )


class AnswerInterruptedError(CommandError):
    """The answer was interrupted."""


class Conversation:
    """The messages so far, without prompts that have no complete answer."""

    def __init__(
        self, client: Client, parameters: dict[str, Any], *, system: str | None, quiet: bool
    ) -> None:
        """Use `parameters`, which include the model, in every call."""
        self._client, self._parameters, self._quiet = client, parameters, quiet
        self._messages: list[Message] = [{"role": "system", "content": system}] if system else []

    def send(self, prompt: str) -> str:
        """Write the answer to stdout while it streams in and return it.

        Raises AnswerInterruptedError, and the errors of the client.
        """
        messages: list[Message] = [*self._messages, {"role": "user", "content": prompt}]
        began_s = time.monotonic()
        pieces: list[str] = []
        first_s: float | None = None
        tokens = 0
        is_complete = False  # an interrupted stream may end without an error
        stream = self._client.chat.completions.create(
            messages=messages,
            stream=True,
            stream_options={"include_usage": True},
            **self._parameters,
        )
        with stream:
            try:
                for chunk in stream:
                    tokens = chunk.usage.completion_tokens if chunk.usage else tokens
                    if not chunk.choices:
                        continue
                    is_complete = is_complete or chunk.choices[0].finish_reason is not None
                    if text := chunk.choices[0].delta.content:
                        first_s = first_s or time.monotonic()
                        pieces.append(text)
                        sys.stdout.write(text)
                        sys.stdout.flush()
            finally:
                if pieces:
                    sys.stdout.write("\n")
        if not is_complete:
            raise AnswerInterruptedError
        answer = "".join(pieces)
        self._messages = [*messages, {"role": "assistant", "content": answer}]
        if not self._quiet:
            now_s = time.monotonic()
            wait_ms = ((first_s or now_s) - began_s) * 1000
            usage = f"{tokens} tokens in {now_s - began_s:.1f} s, the first after {wait_ms:.0f} ms"
            typer.echo(usage, err=True)
        return answer


def converse(conversation: Conversation, prompts: Callable[[], Iterator[str]]) -> None:
    """Send each prompt; report a failed or interrupted one on stderr and continue.

    Raises failures that would recur: a refused key, an unknown model.
    """
    for prompt in prompts():
        try:
            conversation.send(prompt)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
        except Exception as error:  # `describe_failure` knows which are expected; defects pass
            failure = describe_failure(error)
            if failure is None or failure.exit_code in _FATAL:
                raise
            typer.echo(f"millrace: {failure.message}", err=True)


def read_stdin() -> str:
    """Return all of stdin. Bytes that are not UTF-8, as in a diff, are replaced by U+FFFD."""
    return sys.stdin.buffer.read().decode(errors="replace")


def _typed_lines() -> Iterator[str]:
    """Yield the lines typed on the terminal until Ctrl-D."""
    while True:
        typer.echo("> ", err=True, nl=False)
        line = sys.stdin.readline()
        if not line:
            typer.echo(err=True)
            return
        if line.strip():
            yield line.strip()
