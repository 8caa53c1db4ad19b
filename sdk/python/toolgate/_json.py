"""Conversions between JSON values of Python and protobuf."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.struct_pb2 import NULL_VALUE, ListValue, Struct, Value


def to_struct(fields: Mapping[str, Any]) -> Struct:
    """Returns an object as a message; raises ValueError for what is no JSON."""
    return Struct(fields={str(name): to_value(value) for name, value in fields.items()})


def to_value(value: Any) -> Value:
    """Returns a JSON value as a message; raises ValueError for what is no JSON."""
    match value:
        case None:
            return Value(null_value=NULL_VALUE)
        case bool():
            return Value(bool_value=value)
        case str():
            return Value(string_value=value)
        case int() | float():
            if not math.isfinite(value):
                raise ValueError(f"{value} is no JSON number: replace it before the call")
            return Value(number_value=value)
        case Mapping():
            return Value(struct_value=to_struct(value))
        case Sequence() if not isinstance(value, bytes | bytearray | memoryview):
            return Value(list_value=ListValue(values=[to_value(item) for item in value]))
    raise ValueError(f"a value of type {type(value).__name__} is no JSON: convert it before the call")


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
            return int(number) if number.is_integer() and abs(number) <= 2**53 else number
    return None
