"""Goal: settings of the log that can only fail later are refused at the start, and say why."""

import pytest

from core.errors import SettingsError
from topics.settings import KafkaSettings

LOGIN = {"SASL_MECHANISM": "PLAIN", "SASL_USERNAME": "me", "SASL_PASSWORD": "secret"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"BOOTSTRAP_SERVERS": ""}, "BOOTSTRAP_SERVERS"),
        ({"MIN_INSYNC_REPLICAS": "3"}, "replication_factor"),
        (LOGIN, "security_protocol"),
        ({"SECURITY_PROTOCOL": "SASL_SSL"}, "sasl_mechanism"),
        ({**LOGIN, "SECURITY_PROTOCOL": "SASL_SSL", "SASL_USERNAME": ""}, "sasl_username"),
    ],
)
def test_what_contradicts_itself_is_refused(given: dict[str, str], told: str) -> None:
    env = {"BOOTSTRAP_SERVERS": "one:1"} | given
    with pytest.raises(SettingsError, match=told) as refusal:
        KafkaSettings.from_env({f"MILLRACE_KAFKA_{name}": value for name, value in env.items()})
    assert "secret" not in str(refusal.value)


def test_a_login_is_taken() -> None:
    env = {"BOOTSTRAP_SERVERS": "one:1", "SECURITY_PROTOCOL": "SASL_SSL", **LOGIN}
    settings = KafkaSettings.from_env({f"MILLRACE_KAFKA_{n}": value for n, value in env.items()})
    assert settings.client_options()["sasl.password"] == "secret"
