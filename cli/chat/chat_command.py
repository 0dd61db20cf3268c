"""`millrace chat`: talk to a model; its words appear as they come."""

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.chat.default_model import first_chat_model
from cli.client import DEFAULT_URL, KeyOption, QuietOption, UrlOption, connect, with_stream_timeout
from cli.exits import CommandError, ExitCode, describe_failure

if TYPE_CHECKING:
    import openai
    from openai.types.chat import ChatCompletionMessageParam as Message

_FATAL = frozenset({ExitCode.AUTH, ExitCode.NOT_FOUND})
"""Failures that the next question would meet again."""


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
        asked: dict[str, Any] = {"model": model or first_chat_model(client)}
        if max_tokens is not None:
            asked["max_completion_tokens"] = max_tokens
        if temperature is not None:
            asked["temperature"] = temperature
        limited = with_stream_timeout(client) if timeout is None else _limited(client, timeout)
        conversation = Conversation(limited, asked, system=system, quiet=quiet)
        if prompt is None and sys.stdin.isatty():
            converse(conversation, _typed_lines)
            return
        conversation.ask(read_stdin() if prompt in {None, "-"} else str(prompt))


_GRACE_S = 2.0
"""Time beyond the call's own deadline in which the server says that it is over."""


def _limited(client: "openai.OpenAI", timeout_s: float) -> "openai.OpenAI":
    """Return the same client with a deadline for each call, which is then not repeated."""
    milliseconds = str(max(1, round(timeout_s * 1000)))
    return client.with_options(
        max_retries=0,
        timeout=timeout_s + _GRACE_S,
        default_headers={"X-Request-Timeout-Ms": milliseconds},
    )


class AnswerInterruptedError(CommandError):
    """The answer broke off."""


class Conversation:
    """What was said so far; a question without a whole answer is forgotten."""

    def __init__(
        self, client: "openai.OpenAI", asked: dict[str, Any], *, system: str | None, quiet: bool
    ) -> None:
        """`asked` holds the model and the parameters of every call."""
        self._client, self._asked, self._quiet = client, asked, quiet
        self._said: list[Message] = [{"role": "system", "content": system}] if system else []

    def ask(self, question: str) -> str:
        """Write the answer to stdout as it comes and return it.

        Raises AnswerInterruptedError, and what the client raises.
        """
        said: list[Message] = [*self._said, {"role": "user", "content": question}]
        began_s = time.monotonic()
        pieces: list[str] = []
        first_s: float | None = None
        tokens = 0
        is_whole = False  # a stream that is cut may end as quietly as one that is not
        stream = self._client.chat.completions.create(
            messages=said, stream=True, stream_options={"include_usage": True}, **self._asked
        )
        with stream:
            try:
                for chunk in stream:
                    tokens = chunk.usage.completion_tokens if chunk.usage else tokens
                    if not chunk.choices:
                        continue
                    is_whole = is_whole or chunk.choices[0].finish_reason is not None
                    if text := chunk.choices[0].delta.content:
                        first_s = first_s or time.monotonic()
                        pieces.append(text)
                        sys.stdout.write(text)
                        sys.stdout.flush()
            finally:
                if pieces:
                    sys.stdout.write("\n")
        if not is_whole:
            raise AnswerInterruptedError
        answer = "".join(pieces)
        self._said = [*said, {"role": "assistant", "content": answer}]
        if not self._quiet:
            now_s = time.monotonic()
            wait_ms = ((first_s or now_s) - began_s) * 1000
            spent = f"{tokens} tokens in {now_s - began_s:.1f} s, the first after {wait_ms:.0f} ms"
            typer.echo(spent, err=True)
        return answer


def converse(conversation: Conversation, questions: Callable[[], Iterator[str]]) -> None:
    """Ask each question; what fails or is interrupted is told, and the next one may be asked.

    Raises what would fail again: a refused key, an unknown model.
    """
    for question in questions():
        try:
            conversation.ask(question)
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
        except Exception as failure:
            verdict = describe_failure(failure)
            if verdict is None or verdict.exit_code in _FATAL:
                raise
            typer.echo(f"millrace: {verdict.message}", err=True)


def read_stdin() -> str:
    """Return all of stdin. A diff may hold bytes of any encoding: what is not UTF-8 is replaced."""
    return sys.stdin.buffer.read().decode(errors="replace")


def _typed_lines() -> Iterator[str]:
    """Return what is typed, line by line, until Ctrl-D."""
    while True:
        typer.echo("> ", err=True, nl=False)
        line = sys.stdin.readline()
        if not line:
            typer.echo(err=True)
            return
        if line.strip():
            yield line.strip()
