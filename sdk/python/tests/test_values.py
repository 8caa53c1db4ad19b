"""Values and texts, without a service."""

from pathlib import Path

import pytest

from toolgate._connection import find_server
from toolgate._gen.error_reason_pb2 import ErrorReason
from toolgate._gen.tool_pb2 import ToolErrorReason
from toolgate._json import from_struct, to_struct
from toolgate._next_steps import CALL_STEPS, REQUEST_STEPS


def test_json_survives_the_message() -> None:
    value = {"a": [1, 2.5, None, True, {"b": "c"}], "d": {}, "e": [], "f": -7}
    assert from_struct(to_struct(value)) == value
    assert isinstance(from_struct(to_struct({"n": 3}))["n"], int)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}, object()])
def test_what_is_no_json_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="JSON"):
        to_struct({"value": value})


@pytest.mark.parametrize("value", [2**53 + 1, -(2**60), 10**400])
def test_an_integer_that_would_be_rounded_is_refused_with_its_field(value: int) -> None:
    with pytest.raises(ValueError, match=r"^order\.ids\[1\] is -?\d+: .* text"):
        to_struct({"order": {"ids": [2**53, value]}})


def test_each_reason_of_a_call_has_a_next_step() -> None:
    names = [name.removeprefix("TOOL_ERROR_REASON_") for name in ToolErrorReason.keys()]
    assert sorted(CALL_STEPS) == sorted(set(names) - {"UNSPECIFIED"})


def test_next_steps_of_requests_belong_to_reasons_of_the_contract() -> None:
    assert {f"ERROR_REASON_{name}" for name in REQUEST_STEPS} <= set(ErrorReason.keys())


@pytest.mark.parametrize(
    ("url", "is_sent"),
    [
        ("127.0.0.1:7420", True),
        ("http://localhost", True),
        ("http://[::1]:1", True),
        ("https://127.0.0.1.evil.example", False),
    ],
)
def test_the_local_token_is_for_this_machine_alone(
    url: str, is_sent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "caller").write_text("local\n")
    monkeypatch.setenv("TOOLGATE_DATA", str(tmp_path))
    monkeypatch.delenv("TOOLGATE_TOKEN", raising=False)
    assert find_server(url, None, None).token == ("local" if is_sent else None)
