"""`millrace up`: the embedded stack, in the foreground until a signal; `millrace run`: one role."""

import os
import sys
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from cli.demo.demo_models import TINY_MODEL, ensure_tiny_llama
from cli.stack.data_folder import cache_dir
from cli.stack.embedded_stack import EmbeddedStack, StackOptions
from cli.stack.model_requests import ModelRequest, model_requests
from cli.stack.processes.role_children import MODULES, ROLE_ENV, replica_env, role_command
from cli.stack.scaled_pools import read_stack_policies, scaled_pools
from cli.stack.secret_arguments import refuse_secret
from cli.stack.served_models import ServedModel, SignedObjects, served_models
from core.errors import SettingsError
from core.runtime.logs import configure_logs
from core.runtime.shutdown import stop_on_signals
from gpu_consumers.engines.settings import EngineSettings

_FIXED = frozenset(
    {"kind", "model_name", "model_path", "model_version", "trusted_keys", "unverified_until"}
)
"""Fields that have their own options, or that `up` sets itself."""

_UPSTREAM = "MILLRACE_ENGINE_UPSTREAM"

_UNSIGNED = SignedObjects(manifest=b"", bundle=b"", key_pem=b"")

_PATHS = frozenset({"vllm_chat_template", "weight_cache"})  # the shell does not expand ~ after =


_PrivateWebhooksOption: TypeAlias = Annotated[
    bool, typer.Option(help="Development: webhooks may reach private addresses and http URLs.")
]
_AutoscaleOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Scaling policies, TOML: replicas follow the work, from the minimum of each pool to "
        "its maximum. Without it each model has one replica.",
    ),
]


class EngineKind(StrEnum):
    """The kind of the engine that executes items."""

    VLLM = "vllm"
    SIMULATED = "simulated"
    OPENAI_HTTP = "openai_http"


_DataOption: TypeAlias = Annotated[
    Path,
    typer.Option(
        help="Folder of the log, the database and the files; it persists.", file_okay=False
    ),
]
_PortOption: TypeAlias = Annotated[
    int, typer.Option(min=0, max=65_535, help="Port of the API; 0 picks a free one.")
]
_ModelOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        help="A model to serve, NAME; with vllm NAME=PATH, NAME=s3://BUCKET/PREFIX, "
        "NAME=hf://ORG/NAME[@REV] or ORG/NAME of the hub; may be repeated. vllm without one "
        "serves a tiny model of random weights."
    ),
]
_LatencyOption: TypeAlias = Annotated[
    float,
    typer.Option(
        envvar="MILLRACE_ENGINE_SIMULATED_LATENCY_MS",
        help="simulated: milliseconds for each item.",
        min=0,
    ),
]
_OptionsOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        help="vllm: engine options of a model's version in TOML or JSON, NAME=FILE; may be "
        "repeated."
    ),
]
_EngineOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        help="A setting of the engine, NAME=VALUE: vllm_tool_call_parser=hermes stands for "
        "MILLRACE_ENGINE_VLLM_TOOL_CALL_PARSER; may be repeated."
    ),
]


def up(  # noqa: PLR0913, PLR0917  one parameter an option
    data: _DataOption = Path(".millrace"),
    port: _PortOption = 8080,
    engine: Annotated[
        EngineKind, typer.Option(help="Engine that executes items.")
    ] = EngineKind.SIMULATED,
    upstream: Annotated[
        str | None,
        typer.Option(envvar=_UPSTREAM, help="openai_http: base URL of the upstream."),
    ] = None,
    model: _ModelOption = None,
    options: _OptionsOption = None,
    simulated_latency_ms: _LatencyOption = 0.0,
    simulated_concurrency: Annotated[
        int,
        typer.Option(envvar="MILLRACE_ENGINE_CONCURRENCY", help="simulated: items at once.", min=1),
    ] = 64,
    simulated_token_ms: Annotated[
        float | None, typer.Option(help="simulated: milliseconds for each streamed token.", min=0)
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="openai_http: calls at once.", min=1)
    ] = None,
    engine_option: _EngineOption = None,
    autoscale: _AutoscaleOption = None,
    allow_private_webhooks: _PrivateWebhooksOption = False,
) -> None:
    """Start a Kafka broker, a Postgres server and every role; stop them on a signal.

    Prints one line on stdout when a call and a job can run: `ready http://127.0.0.1:PORT key sk-…`.
    Everything else goes to stderr and to the log files below DATA/logs. Started again on the same
    DATA, it continues all jobs and prints the same key.
    """
    _refuse_secrets(upstream, model or (), engine_option or ())
    configure_logs("up")
    stop = stop_on_signals()
    if engine is EngineKind.OPENAI_HTTP and upstream is None:
        raise typer.BadParameter("--engine openai_http needs --upstream URL")
    fields: dict[EngineKind, dict[str, object]] = {
        EngineKind.SIMULATED: {
            "simulated_latency_ms": simulated_latency_ms,
            "concurrency": simulated_concurrency,
            "simulated_token_ms": simulated_token_ms,
        },
        EngineKind.OPENAI_HTTP: {"upstream": upstream, "concurrency": concurrency},
    }
    engine_env = _variables(**fields.get(engine, {}))
    engine_env |= engine_options(engine_option or [])
    pushes: tuple[ModelRequest, ...] = ()
    served: tuple[ServedModel, ...] = ()
    if engine is EngineKind.VLLM:
        pushes = model_requests(model or [_tiny_model()], options or ())
    else:
        if options:
            raise typer.BadParameter("--options is for --engine vllm")
        names = model or (["simulated"] if engine is EngineKind.SIMULATED else [])
        if not names:
            raise typer.BadParameter(f"--engine {engine} needs at least one --model")
        served = served_models(names, engine.value, upstream)
    stack_options = StackOptions(
        data=data.absolute(),
        port=port,
        models=served,
        pushes=pushes,
        engine_env=engine_env,
        allow_private_webhooks=allow_private_webhooks,
        autoscale=autoscale.absolute() if autoscale else None,
    )
    _run(stack_options, stop.is_set)


def _tiny_model() -> str:
    """Return `--model` for the small model of the demo, generated if it is missing."""
    folder = cache_dir(os.environ) / "models" / TINY_MODEL
    return f"{TINY_MODEL}={ensure_tiny_llama(folder)}"


def _refuse_secrets(
    upstream: str | None, models: Iterable[str], engine_options: Iterable[str]
) -> None:
    """Raise SettingsError for a secret in an argument; `upstream` may be from its variable."""
    is_argument = upstream is not None and upstream != os.environ.get(_UPSTREAM)
    urls = [upstream] if upstream is not None and is_argument else []
    given = {"--upstream": urls, "--model": models, "--engine-option": engine_options}
    for option, texts in given.items():
        for text in texts:
            refuse_secret(option, text)


def _variables(**fields: object) -> dict[str, str]:
    """Return the environment variables for the engine's settings that are given."""
    given = {name: value for name, value in fields.items() if value is not None}
    return {f"{EngineSettings.env_prefix}{n.upper()}": str(value) for n, value in given.items()}


def _run(options: StackOptions, should_stop: Callable[[], bool]) -> None:
    """Start the stack and keep it running. Raises SettingsError before it starts a process."""
    asked = [
        ServedModel(
            name=request.name, version="0" * 64, engine="vllm", endpoints=(), signed=_UNSIGNED
        )
        for request in options.pushes
    ]  # their versions are known once they are pushed, and matter to no setting
    for model in (*options.models, *asked):
        env = {**os.environ, **replica_env(model, options.engine_env, options.data)}
        EngineSettings.from_env(env)
    if options.autoscale is not None:
        policies = read_stack_policies(options.autoscale)
        scaled_pools(policies, [model.pool for model in options.models], time.time())
    with EmbeddedStack(options, os.environ, should_stop) as stack:
        typer.echo(f"millrace: starting; logs in {options.data / 'logs'}", err=True)
        stack.start()
        for pool in stack.scaled_pools:
            typer.echo(f"millrace: {pool.bounds_text()}", err=True)
        for table in stack.unserved_tables:
            typer.echo(f"millrace: no model of this stack has the pool {table}", err=True)
        if not should_stop():  # stopped during the start: not ready
            sys.stdout.write(f"ready {stack.url} key {stack.key}\n")
            sys.stdout.flush()
        stack.run()


def engine_options(texts: Iterable[str]) -> dict[str, str]:
    """Return the variables for each `--engine-option NAME=VALUE`. Raises SettingsError."""
    names = [name for name in EngineSettings.model_fields if name not in _FIXED]
    fields: dict[str, str] = {}
    for text in texts:
        option, equals, value = text.partition("=")
        name = option.strip().lower()
        if not equals or name not in names:
            raise SettingsError(
                f"--engine-option {option}: give NAME=VALUE, NAME one of {', '.join(names)}"
            )
        fields[name] = str(Path(value).expanduser().absolute()) if name in _PATHS else value
    return _variables(**fields)


def _require_role(role: str) -> str:
    if role not in MODULES:
        raise typer.BadParameter(f"there is no role {role!r}; roles are {', '.join(MODULES)}")
    return role


def run(
    role: Annotated[
        str, typer.Argument(help=f"One of {', '.join(MODULES)}.", callback=_require_role)
    ],
) -> None:
    """Run one role in the foreground.

    Kafka, Postgres, the object store and the role's own options come from `MILLRACE_…` variables
    (docs/operations.md lists them). Each role may run in several replicas.
    """
    command = role_command(role)
    env = {**os.environ, **ROLE_ENV}
    os.execve(command[0], command, env)  # noqa: S606  the role replaces this process
