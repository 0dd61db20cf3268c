"""A stack whose roles have users of their own, with the rights that the commands print."""

import os
import random
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from typer.testing import CliRunner

from cli.main import app
from cli.stack.data_folder import cache_dir
from cli.stack.processes.child import ReadinessLines
from cli.stack.processes.ports import HOST, is_api_ready, reserve_ports
from cli.stack.processes.role_children import (
    CONTROL_PLANE,
    DATABASE,
    WEBHOOK_ROLES,
    replica_env,
    role_child,
    shared_env,
    webhook_env,
)
from cli.stack.processes.supervisor import Supervisor
from cli.stack.served_models import ServedModel, served_models
from cli.stack.services.embedded_kafka import EmbeddedKafka
from cli.stack.services.embedded_postgres import EmbeddedPostgres, binaries
from cli.stack.stack_setup import prepare_installation, watch_replica_credit
from tests.support.until import until
from topics.records.access import CLUSTER
from topics.settings import KafkaSettings

PREFIX = "mine."
RESOURCE_TYPES = {
    "--topic": ResourceType.TOPIC,
    "--group": ResourceType.GROUP,
    "--cluster": ResourceType.BROKER,  # the client's word for the cluster
}
OPERATIONS = {
    "Alter": AclOperation.ALTER,
    "Create": AclOperation.CREATE,
    "Describe": AclOperation.DESCRIBE,
    "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
    "Read": AclOperation.READ,
    "Write": AclOperation.WRITE,
}
READY_S_MAX = 120.0
KAFKA_USERS = (
    *("api", "intake", "batcher", "gpu-consumer", "results-writer", "webhooks"),
    "autoscaler",
)
DATABASE_USERS = {
    "api": "millrace_api",
    "intake": "millrace_intake",
    "batcher": "millrace_batcher",
    "results-writer": "millrace_results_writer",
    "finaliser": "millrace_finaliser",
    "webhooks": "millrace_webhooks",
}
PASSWORD = "of-one-role's"
POLICIES = """
[defaults]
mode = "observe"
[roles.batcher]
mode = "observe"
target_per_s = 1
[roles.results-writer]
mode = "observe"
target_per_s = 1
"""
USERS_SCRIPT = Path(__file__).parents[3] / "deploy" / "postgres_users.sh"


@dataclass(frozen=True)
class Installation:
    """The services of the stack, and how each role reaches them."""

    data: Path
    url: str
    key: str
    model: ServedModel
    kafka: KafkaSettings  # as an administrator
    database_url: str  # as an administrator
    supervisor: Supervisor

    def kafka_of(self, role: str) -> KafkaSettings:
        return KafkaSettings.from_env(kafka_env(self.kafka, role))

    def database_of(self, role: str) -> str:
        return as_user(self.database_url, DATABASE_USERS[role])


def as_user(url: str, user: str) -> str:
    given = sa.make_url(url).set(username=user, password=PASSWORD)
    return given.render_as_string(hide_password=False)


def kafka_env(kafka: KafkaSettings, role: str) -> dict[str, str]:
    return {
        "MILLRACE_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        "MILLRACE_KAFKA_TOPIC_PREFIX": PREFIX,
        "MILLRACE_KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "MILLRACE_KAFKA_SASL_MECHANISM": "PLAIN",
        "MILLRACE_KAFKA_SASL_USERNAME": f"millrace-{role}",
        "MILLRACE_KAFKA_SASL_PASSWORD": PASSWORD,
    }


def kafka_variables(kafka: KafkaSettings) -> dict[str, str]:
    """Return the variables of an administrator."""
    assert kafka.sasl_password is not None
    return {
        "MILLRACE_KAFKA_SASL_USERNAME": kafka.sasl_username or "",
        "MILLRACE_KAFKA_SASL_PASSWORD": kafka.sasl_password.get_secret_value(),
    }


def prepare_broker(folder: Path) -> EmbeddedKafka:
    """Return the embedded broker with an authoriser and a user for each role."""
    broker = EmbeddedKafka(folder, cache_dir(os.environ))
    broker.prepare()
    path = folder / "kafka" / "server.properties"
    users = "".join(f' user_millrace-{role}="{PASSWORD}"' for role in KAFKA_USERS)
    text = path.read_text().replace('";\n', f'"{users};\n')
    path.write_text(
        f"{text}super.users=User:millrace\n"
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
    )
    return broker


def printed(*arguments: str, env: Mapping[str, str] | None = None) -> list[str]:
    """Return the lines that an operator's command prints."""
    result = CliRunner().invoke(app, arguments, env={**(env or {})})
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def binding_of(command: str) -> list[AclBinding]:
    """Return the ACLs that one printed command adds."""
    tool, parameters, *arguments = shlex.split(command)
    assert (tool, parameters, arguments.pop(0)) == ("kafka-acls.sh", "$@", "--add")
    if arguments[-1] == "--cluster":
        arguments.append(CLUSTER)
    options = list(zip(arguments[::2], arguments[1::2], strict=True))
    (principal,) = (value for name, value in options if name == "--allow-principal")
    ((kind, resource),) = (one for one in options if one[0] in RESOURCE_TYPES)
    return [
        AclBinding(
            RESOURCE_TYPES[kind],
            resource,
            ResourcePatternType.LITERAL,
            principal,
            "*",
            OPERATIONS[value],
            AclPermissionType.ALLOW,
        )
        for name, value in options
        if name == "--operation"
    ]


def grant_everything(kafka: KafkaSettings, database_url: str, pool: str) -> None:
    """Run what `millrace topics acls` and `millrace database grants` print."""
    commands = printed(
        "topics", "acls", "--pool", pool, env={"MILLRACE_KAFKA_TOPIC_PREFIX": PREFIX}
    )
    bindings = [binding for command in commands for binding in binding_of(command)]
    admin = AdminClient(kafka.client_options())  # kept: its end would cancel the requests
    for future in admin.create_acls(bindings).values():
        future.result(30)
    last = AdminClient(KafkaSettings.from_env(kafka_env(kafka, "webhooks")).client_options())
    until(lambda: f"{PREFIX}events" in last.list_topics(timeout=5).topics)  # it applies the ACLs
    engine = sa.create_engine(database_url)
    script = "\n".join(printed("database", "grants"))
    with engine.connect() as connection:
        for _ in range(2):  # it can be repeated
            connection.connection.driver_connection.execute(script)  # type: ignore[union-attr]
            connection.connection.driver_connection.commit()  # type: ignore[union-attr]
    engine.dispose()
    administrator = {
        **kafka_env(kafka, "admin"),
        **kafka_variables(kafka),
        DATABASE: database_url,
    }
    printed("topics", "acls", "--pool", pool, "--apply", env=administrator)
    printed("database", "grants", "--apply", env=administrator)
    create_users(database_url)


def create_users(database_url: str) -> None:
    """Run the script that creates the users in the container of Postgres."""
    url = sa.make_url(database_url)
    names = [user.removeprefix("millrace_").upper() for user in DATABASE_USERS.values()]
    env = {
        **os.environ,
        "PATH": f"{binaries()}:{os.environ['PATH']}",
        "PGHOST": str(url.query["host"]),
        "PGPASSWORD": url.password or "",
        "POSTGRES_USER": url.username or "",
        "POSTGRES_DB": url.database or "",
        **{f"POSTGRES_{name}_PASSWORD": PASSWORD for name in names},
    }
    subprocess.run(["sh", str(USERS_SCRIPT)], env=env, check=True, timeout=60)


@contextmanager
def running_installation(data: Path, env: Mapping[str, str]) -> Iterator[Installation]:
    """Run all roles, each as a user of its own, for a block."""
    broker, server = prepare_broker(data), EmbeddedPostgres(data)
    server.prepare()
    supervisor = Supervisor(data / "logs")
    with ExitStack() as closing:
        closing.callback(server.remove_socket_folder)
        closing.callback(supervisor.stop)
        supervisor.start([broker.child(), server.child()])
        for service in (server, broker):
            supervisor.wait_until(service.is_ready, timeout_s=READY_S_MAX, what="a service")
        kafka = broker.client_settings.model_copy(update={"topic_prefix": PREFIX})
        (model,) = served_models(["simulated"], "simulated", None)
        key = prepare_installation(data, kafka, server.url, [model])
        grant_everything(kafka, server.url, model.pool)
        names = [name for name in CONTROL_PLANE if name != "api"]
        ports = reserve_ports(data / "ports.json", ("api", "gpu", *names), random.Random())
        readiness = ReadinessLines(data / "logs", names)
        objects = {"MILLRACE_OBJECTS_ROOT": str(data / "objects")}
        replica = {
            **objects,
            **kafka_env(kafka, "gpu-consumer"),
            **replica_env(model, {}, Path()),
            **env,
            "MILLRACE_GPU_METRICS_PORT": str(ports["gpu"]),
        }
        supervisor.start([role_child("gpu", "gpu-consumer", replica)])
        policies = data / "scaling.toml"
        policies.write_text(POLICIES)
        scaling = {
            **shared_env(kafka.bootstrap_servers, "", data, {}),
            **kafka_env(kafka, "autoscaler"),
            "MILLRACE_AUTOSCALER_POLICY_FILE": str(policies),
        }
        supervisor.start([role_child("autoscaler", "autoscaler", scaling)])
        for name, (role, own, port) in CONTROL_PLANE.items():
            address = {port: str(ports[name])} if port else {"MILLRACE_API_PORT": str(ports["api"])}
            webhooks = webhook_env(data, {}, allow_private=True) if role in WEBHOOK_ROLES else {}
            users = {
                **shared_env(kafka.bootstrap_servers, "", data, {}),
                **(kafka_env(kafka, role) if role != "finaliser" else {}),
                DATABASE: as_user(server.url, DATABASE_USERS[role]),
            }
            supervisor.start(
                [role_child(name, role, {**users, **own, **env, **webhooks, **address})]
            )
        with watch_replica_credit(kafka, [(model.pool, "bulk"), (model.pool, "interactive")]) as ok:
            for name in names:
                supervisor.wait_until(
                    lambda name=name: readiness.is_ready(name),  # type: ignore[misc]
                    timeout_s=READY_S_MAX,
                    what=name,
                )
            supervisor.wait_until(
                lambda: is_api_ready(ports["api"]), timeout_s=READY_S_MAX, what="api"
            )
            supervisor.wait_until(ok, timeout_s=READY_S_MAX, what="credit")
        url = f"http://{HOST}:{ports['api']}"
        yield Installation(data, url, key, model, kafka, server.url, supervisor)
