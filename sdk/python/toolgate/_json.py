"""Conversions between JSON values of Python and protobuf."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.struct_pb2 import NULL_VALUE, ListValue, Struct, Value

MAX_INTEGER = 2**53
"""Numbers of the contract are doubles, which hold each integer up to this one."""


def to_struct(fields: Mapping[str, Any], path: str = "") -> Struct:
    """Returns an object as a message; raises ValueError for what is no JSON, and for integers that would be rounded."""
    inner = f"{path}." if path else ""
    return Struct(fields={str(name): to_value(value, f"{inner}{name}") for name, value in fields.items()})


def to_value(value: Any, path: str = "the value") -> Value:
    """Returns a JSON value as a message; raises ValueError as to_struct, with the path of the field."""
    match value:
        case None:
            return Value(null_value=NULL_VALUE)
        case bool():
            return Value(bool_value=value)
        case str():
            return Value(string_value=value)
        case int() if abs(value) > MAX_INTEGER:
            raise ValueError(f"{path} is {value}: an integer beyond 2^53 would be rounded, so pass it as text")
        case int() | float():
            if not math.isfinite(value):
                raise ValueError(f"{path} is {value}, which is no JSON number: replace it before the call")
            return Value(number_value=value)
        case Mapping():
            return Value(struct_value=to_struct(value, path))
        case Sequence() if not isinstance(value, bytes | bytearray | memoryview):
            items = [to_value(item, f"{path}[{index}]") for index, item in enumerate(value)]
            return Value(list_value=ListValue(values=items))
    raise ValueError(f"{path} has the type {type(value).__name__}, which is no JSON: convert it before the call")


def from_struct(struct: Struct) -> dict[str, Any]:
    """Returns the object in a message."""
    return {name: from_value(value) for name, value in struct.fields.items()}


def from_value(value: Value) -> Any:
    """Returns the JSON value in a message. Numbers without a fraction become `int`, since the message knows floats only."""
    match value.WhichOneof("kind"):
        case "struct_value":
            return from_struct(value.struct_value)
        case "list_value":
            return [from_value(item) for item in value.list_value.values]
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() and abs(number) <= MAX_INTEGER else number
    return None
