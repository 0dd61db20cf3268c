"""Goal: webhook tables show why an endpoint or a delivery failed."""

from cli.admin.webhook_commands import last_try_text, state_text


def test_state_has_the_reason_of_a_disabled_endpoint() -> None:
    assert state_text({"millrace": {"enabled": True, "disabled_reason": None}}) == "enabled"
    assert state_text({"millrace": {"enabled": False, "disabled_reason": "unreachable"}}) == (
        "disabled: unreachable"
    )


def test_last_try_is_a_status_or_an_error_code() -> None:
    silent = {"status_code": None, "error_code": "timed_out"}
    refused = {"status_code": 500, "error_code": "5xx"}

    assert last_try_text({"attempts": []}) == ""
    assert last_try_text({"attempts": [silent, refused]}) == "500"
    assert last_try_text({"attempts": [refused, silent]}) == "timed_out"
