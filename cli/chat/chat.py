"""`millrace chat`: a conversation with a model, with streamed answers."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.chat.chat_models import chat_model
from cli.client import DEFAULT_URL, KeyOption, QuietOption, UrlOption, connect, with_stream_timeout
from cli.exits import CommandError, ExitCode, failure_report

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletionMessageParam as Message

_FATAL = frozenset({ExitCode.AUTH, ExitCode.NOT_FOUND})
"""Failures that every later message would repeat."""


def chat(  # noqa: PLR0913, PLR0917  each one is an option of the command line
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", help="Ask this once and end; - reads stdin."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of the model; else the first one that chats.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="What the model is told first.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of an answer.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="0 is the same each time.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds for an answer; then exit 124.")
    ] = None,
    quiet: QuietOption = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = "",
) -> None:
    """Talk to a model. Ctrl-C cuts an answer short, Ctrl-D ends.

    With --prompt, or with a pipe as stdin, ask once: the answer alone is on stdout.
    """
    with connect(url, key) as client:
        parameters: dict[str, Any] = {"model": model or chat_model(client)}
        if max_tokens is not None:
            parameters["max_completion_tokens"] = max_tokens
        if temperature is not None:
            parameters["temperature"] = temperature
        limited = with_stream_timeout(client) if timeout is None else _limited(client, timeout)
        conversation = Conversation(limited, parameters, system=system, quiet=quiet)
        if prompt is None and sys.stdin.isatty():
            converse(conversation, _typed)
            return
        conversation.send(piped() if prompt in {None, "-"} else str(prompt))


_GRACE_S = 2.0
"""Time after the call's deadline for the server's own timeout answer."""


def _limited(client: "openai.OpenAI", timeout_s: float) -> "openai.OpenAI":
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
    """The messages so far, without those whose answer was interrupted."""

    def __init__(
        self,
        client: "openai.OpenAI",
        parameters: dict[str, Any],
        *,
        system: str | None,
        quiet: bool,
    ) -> None:
        """`parameters` holds the model and the options of every call."""
        self._client, self._parameters, self._quiet = client, parameters, quiet
        self._messages: list[Message] = [{"role": "system", "content": system}] if system else []

    def send(self, message: str) -> str:
        """Write the answer to stdout as it comes and return it.

        Raises AnswerInterruptedError, and the client's errors.
        """
        messages: list[Message] = [*self._messages, {"role": "user", "content": message}]
        started_s = time.monotonic()
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
            wait_ms = ((first_s or now_s) - started_s) * 1000
            summary = (
                f"{tokens} tokens in {now_s - started_s:.1f} s, the first after {wait_ms:.0f} ms"
            )
            typer.echo(summary, err=True)
        return answer


def converse(conversation: Conversation, messages: Callable[[], Iterator[str]]) -> None:
    """Send each message; report a failed or interrupted one and continue with the next.

    Raises failures that would repeat: a refused key, an unknown model.
    """
    for message in messages():
        try:
            conversation.send(message)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
        except Exception as failure:
            report = failure_report(failure)
            if report is None or report.exit_code in _FATAL:
                raise
            typer.echo(f"millrace: {report.message}", err=True)


def piped() -> str:
    """Return all of stdin, with bytes replaced that are not UTF-8: a diff may hold some."""
    return sys.stdin.buffer.read().decode(errors="replace")


def _typed() -> Iterator[str]:
    """Yield the typed lines until Ctrl-D."""
    while True:
        typer.echo("> ", err=True, nl=False)
        line = sys.stdin.readline()
        if not line:
            typer.echo(err=True)
            return
        if line.strip():
            yield line.strip()
