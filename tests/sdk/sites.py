"""Sites: the address of a stack, its models, and tenants for one run of the checks."""

import time
import uuid

from typer.testing import CliRunner

from cli.main import app
from core.ids import EVENT, public_id
from core.webhook_signatures import secret_text, signed_headers
from results.webhooks.events.messages import job_message
from tests.sdk.checks.site import Site
from tests.support.stacks import Stack

OTHER_MODEL = "org/small"
IDLE_MODEL = "idle"
EMBEDDING_MODEL = "minilm"


def simulated_site(stack: Stack) -> Site:
    """Return a site with new tenants, whose lists are empty."""
    return Site(
        url=stack.url,
        key=new_key(stack),
        poor_key=new_key(stack, "--stored-bytes-max", "10"),
        chat_model=stack.model,
        embedding_model=stack.model,
        other_model=OTHER_MODEL,
        busy_key=new_key(stack),
        idle_model=IDLE_MODEL,
        webhook=signed_webhook(),
    )


def vllm_site(stack: Stack) -> Site:
    """Return a site of real models."""
    key = new_key(stack)
    return Site(
        url=stack.url,
        key=key,
        poor_key=key,
        chat_model=stack.model,
        embedding_model=EMBEDDING_MODEL,
        other_model=EMBEDDING_MODEL,
    )


def signed_webhook() -> dict[str, str]:
    """Return a message as it is delivered during a rotation of the secret."""
    secrets = (b"s" * 32, b"t" * 32)
    job_id, message_id = uuid.uuid4(), uuid.uuid4()
    message = job_message((message_id, "batch.completed"), job_id, job_id, time.time())
    headers = signed_headers(secrets, public_id(EVENT, message_id), int(message.at_s), message.body)
    return {
        **headers,
        "body": message.body.decode(),
        "secret": secret_text(secrets[0]),
        "other_secret": secret_text(secrets[1]),
    }


def add_idle_model(stack: Stack) -> None:
    """Register a model whose pool has no replica."""
    options = ("--version", "1", "--pool", IDLE_MODEL, "--engine", "simulated")
    _millrace(stack, "models", "add", IDLE_MODEL, *options, "--endpoints", "chat/completions")
    _millrace(stack, "topics", "create")


def new_key(stack: Stack, *tenant_options: str) -> str:
    """Return the key of a new tenant."""
    name = f"sdk-{uuid.uuid4().hex[:12]}"
    _millrace(stack, "tenants", "create", name, *tenant_options)
    return _millrace(stack, "keys", "create", "--tenant", name)


def _millrace(stack: Stack, *arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments, "--data", str(stack.data)])
    assert done.exit_code == 0, done.output
    return done.stdout.strip()
