"""Goal: Kafka settings that would fail later are refused at the start, with the reason."""

from collections.abc import Callable

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from core.errors import SettingsError
from topics.clients.client_factory import new_client
from topics.settings import KafkaSettings

LOGIN = {"SASL_MECHANISM": "PLAIN", "SASL_USERNAME": "me", "SASL_PASSWORD": "secret"}


def settings_of(**given: str) -> KafkaSettings:
    env = {"BOOTSTRAP_SERVERS": "one:1"} | given
    return KafkaSettings.from_env({f"MILLRACE_KAFKA_{name}": env[name] for name in env})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"BOOTSTRAP_SERVERS": ""}, "BOOTSTRAP_SERVERS"),
        ({"BOOTSTRAP_SERVERS": " , "}, "BOOTSTRAP_SERVERS: .* no server"),
        ({"BOOTSTRAP_SERVERS": "one:1,PLAINTEXT://two:1"}, "BOOTSTRAP_SERVERS: .* scheme"),
        ({"SECURITY_PROTOCOL": "SSL", "SSL_CA_LOCATION": "/nope.pem"}, "No such file"),
        ({"SECURITY_PROTOCOL": "SSL", "SSL_CA_LOCATION": "/"}, "Is a directory"),
        ({"SECURITY_PROTOCOL": "SSL", "SSL_CA_LOCATION": __file__}, "no certificates"),
        ({"MIN_INSYNC_REPLICAS": "3"}, "replication_factor"),
        (LOGIN, "security_protocol"),
        ({"SECURITY_PROTOCOL": "SASL_SSL"}, "sasl_mechanism"),
        ({**LOGIN, "SECURITY_PROTOCOL": "SASL_SSL", "SASL_USERNAME": ""}, "sasl_username"),
    ],
)
def test_contradicting_settings_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message) as refusal:
        settings_of(**given)
    assert "secret" not in str(refusal.value)


def test_settings_reach_the_client_options() -> None:
    settings = settings_of(
        BOOTSTRAP_SERVERS=" one:1, two:2 ,", SECURITY_PROTOCOL="SASL_SSL", **LOGIN
    )
    assert settings.client_options()["sasl.password"] == "secret"
    assert settings.bootstrap_servers == "one:1,two:2"  # without spaces


@pytest.mark.parametrize("kind", [Producer, Consumer, AdminClient])
def test_a_rejected_client_option_is_a_settings_error(kind: Callable[..., object]) -> None:
    options = KafkaSettings(bootstrap_servers="one:1").client_options() | {"group.id": "g"}
    with pytest.raises(SettingsError, match=r"refuses security\.protocol$"):
        new_client(kind, options | {"security.protocol": "secret"})


def test_other_client_errors_propagate() -> None:
    def broken(*_: object, **__: object) -> None:
        raise KafkaException(KafkaError(KafkaError._CRIT_SYS_RESOURCE))

    with pytest.raises(KafkaException):
        new_client(broken, {})
