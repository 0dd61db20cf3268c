"""The base of settings classes: read once from the environment, validated, frozen."""

from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, Self, TypeAlias, TypeVar, overload

from pydantic import BaseModel, ConfigDict, ValidationError

from core.errors import SettingsError

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
E = TypeVar("E")
F = TypeVar("F")
G = TypeVar("G")

Environment: TypeAlias = Mapping[str, str]


class Settings(BaseModel):
    """Base of every settings class, which is defined next to the client or role it configures.

    An unknown or invalid variable stops the process at start, with all mistakes of the class in one
    message; `read_all` combines the mistakes of several classes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    env_prefix: ClassVar[str]

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Self:
        """Build from the variables named `<env_prefix><FIELD>`. Raises SettingsError."""
        prefix = cls.env_prefix
        ours = {n.removeprefix(prefix).lower(): v for n, v in env.items() if n.startswith(prefix)}
        try:
            return cls.model_validate(ours)
        except ValidationError as error:
            raise SettingsError("; ".join(_mistakes(prefix, error))) from None


@overload
def read_all(
    env: Environment, a: Callable[[Environment], A], b: Callable[[Environment], B], /
) -> tuple[A, B]: ...
@overload
def read_all(
    env: Environment,
    a: Callable[[Environment], A],
    b: Callable[[Environment], B],
    c: Callable[[Environment], C],
    /,
) -> tuple[A, B, C]: ...
@overload
def read_all(
    env: Environment,
    a: Callable[[Environment], A],
    b: Callable[[Environment], B],
    c: Callable[[Environment], C],
    d: Callable[[Environment], D],
    /,
) -> tuple[A, B, C, D]: ...
@overload
def read_all(
    env: Environment,
    a: Callable[[Environment], A],
    b: Callable[[Environment], B],
    c: Callable[[Environment], C],
    d: Callable[[Environment], D],
    e: Callable[[Environment], E],
    /,
) -> tuple[A, B, C, D, E]: ...
@overload
def read_all(
    env: Environment,
    a: Callable[[Environment], A],
    b: Callable[[Environment], B],
    c: Callable[[Environment], C],
    d: Callable[[Environment], D],
    e: Callable[[Environment], E],
    f: Callable[[Environment], F],
    /,
) -> tuple[A, B, C, D, E, F]: ...
@overload
def read_all(
    env: Environment,
    a: Callable[[Environment], A],
    b: Callable[[Environment], B],
    c: Callable[[Environment], C],
    d: Callable[[Environment], D],
    e: Callable[[Environment], E],
    f: Callable[[Environment], F],
    g: Callable[[Environment], G],
    /,
) -> tuple[A, B, C, D, E, F, G]: ...
def read_all(env: Environment, /, *readers: Callable[[Environment], object]) -> tuple[object, ...]:
    """Return the result of each reader, such as `KafkaSettings.from_env`, in order.

    Raises one SettingsError with the mistakes of all readers.
    """
    found, mistakes = [], []
    for read in readers:
        try:
            found.append(read(env))
        except SettingsError as error:
            mistakes.append(str(error))
    if mistakes:
        raise SettingsError("; ".join(mistakes))
    return tuple(found)


def _mistakes(prefix: str, error: ValidationError) -> Iterable[str]:
    """Yield one sentence for each mistake, with the variable but not its value, maybe a secret."""
    for mistake in error.errors(include_input=False, include_url=False):
        name = prefix + "_".join(str(part) for part in mistake["loc"]).upper()
        yield f"{name}: {mistake['msg']}"
