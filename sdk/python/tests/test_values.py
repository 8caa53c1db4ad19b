"""Values and texts, without a service."""

import pytest

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


def test_each_reason_of_a_call_has_a_next_step() -> None:
    names = [name.removeprefix("TOOL_ERROR_REASON_") for name in ToolErrorReason.keys()]
    assert sorted(CALL_STEPS) == sorted(set(names) - {"UNSPECIFIED"})


def test_next_steps_of_requests_belong_to_reasons_of_the_contract() -> None:
    assert {f"ERROR_REASON_{name}" for name in REQUEST_STEPS} <= set(ErrorReason.keys())
