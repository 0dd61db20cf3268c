"""Goal: a conversation keeps complete answers only and survives transient failures."""

import io
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import pytest

from cli.api_client import NoChatModelError, first_chat_model
from cli.chat.chat_command import AnswerInterruptedError, Conversation, converse, read_stdin

REQUEST = httpx2.Request("POST", "http://127.0.0.1:9/v1/chat/completions")


def refused(status: int) -> openai.APIStatusError:
    return openai.APIStatusError("no", response=httpx2.Response(status, request=REQUEST), body=None)


def piece(text: str | None, finish_reason: str | None = None) -> SimpleNamespace:
    delta = SimpleNamespace(content=text)
    choices = [SimpleNamespace(delta=delta, finish_reason=finish_reason)]
    return SimpleNamespace(usage=None, choices=choices)


END = piece(None, "stop")
USAGE = SimpleNamespace(usage=SimpleNamespace(completion_tokens=7), choices=[])


class Stream:
    """Chunks of an answer, and the failure that interrupts them."""

    def __init__(self, pieces: Iterable[Any], failure: BaseException | None = None) -> None:
        self._pieces, self._failure = pieces, failure
        self.closed = False

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.closed = True

    def __iter__(self) -> Iterator[Any]:
        yield from self._pieces
        if self._failure is not None:
            raise self._failure


class Client:
    """A client with scripted answers; an exception among them is raised by the call."""

    def __init__(self, *answers: Stream | Exception) -> None:
        self._answers = list(answers)
        self.requests: list[list[dict[str, str]]] = []
        self.chat = SimpleNamespace(completions=SimpleNamespace(create=self._create))

    def _create(self, *, messages: list[dict[str, str]], **_: object) -> Stream:
        self.requests.append(messages)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def run_conversation(
    *answers: Stream | Exception, prompts: Iterable[str] = ("one", "two")
) -> Client:
    client = Client(*answers)
    conversation = Conversation(client, {"model": "m"}, system="be brief", quiet=False)  # type: ignore[arg-type]
    converse(conversation, lambda: iter(prompts))
    return client


def test_answers_are_streamed_and_added_to_the_conversation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    client = run_conversation(
        Stream([piece("He"), piece(None), piece("y"), END, USAGE]), Stream([piece("Bye", "length")])
    )

    captured = capsys.readouterr()
    assert captured.out == "Hey\nBye\n"
    assert captured.err.startswith("7 tokens in ")
    assert [(m["role"], m["content"]) for m in client.requests[1]] == [
        ("system", "be brief"),
        ("user", "one"),
        ("assistant", "Hey"),
        ("user", "two"),
    ]


@pytest.mark.parametrize(
    "answer",
    [
        refused(503),
        Stream([piece("He")], refused(500)),
        Stream([piece("He")], KeyboardInterrupt()),
        Stream([piece("He")]),
        Stream([]),
    ],
)
def test_prompt_without_complete_answer_is_dropped(
    answer: Stream | Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    client = run_conversation(answer, Stream([piece("Hey"), END]))

    assert [m["content"] for m in client.requests[1]] == ["be brief", "two"]
    captured = capsys.readouterr()
    assert captured.out in {"Hey\n", "He\nHey\n"}
    assert "interrupted" in captured.err or "millrace: " in captured.err
    assert not isinstance(answer, Stream) or answer.closed


def test_answer_without_finish_reason_fails(capsys: pytest.CaptureFixture[str]) -> None:
    conversation = Conversation(
        Client(Stream([piece("He"), USAGE])),  # type: ignore[arg-type]
        {"model": "m"},
        system=None,
        quiet=False,
    )

    with pytest.raises(AnswerInterruptedError):
        conversation.send("one")

    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("He\n", "")


@pytest.mark.parametrize("status", [401, 404])
def test_recurring_failure_ends_the_conversation(status: int) -> None:
    with pytest.raises(openai.APIStatusError):
        run_conversation(refused(status))


def test_default_model_is_the_first_that_serves_chat() -> None:
    def model(name: str, *endpoints: str) -> SimpleNamespace:
        return SimpleNamespace(id=name, model_extra={"millrace": {"endpoints": list(endpoints)}})

    def client(*models: SimpleNamespace) -> Any:
        return SimpleNamespace(models=SimpleNamespace(list=lambda: iter(models)))

    found = client(model("e", "/v1/embeddings"), model("c", "/v1/chat/completions"))
    assert first_chat_model(found) == "c"
    with pytest.raises(NoChatModelError):
        first_chat_model(
            client(model("e", "/v1/embeddings"), SimpleNamespace(id="x", model_extra=None))
        )


def test_stdin_accepts_any_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO("+ café\n".encode("latin-1") + "+ für\n".encode())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(content, encoding="utf-8"))

    assert read_stdin() == "+ caf\N{REPLACEMENT CHARACTER}\n+ für\n"
