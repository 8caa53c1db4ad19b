"""Declarations of tools, and `toolgate.testing`, without a service."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from ordered import WHOLE, read_tool, run_block
from pydantic import BaseModel, Field

from toolgate import (
    Context,
    Permission,
    SyncContext,
    ToolFailure,
    ToolResult,
    Worker,
    define_tool,
    tool,
)
from toolgate._json import from_struct
from toolgate.testing import RefusedError, run

sys.path.append(str(Path(__file__).parents[1] / "examples"))
from worker import deploy


class Order(BaseModel):
    item: str
    count: Annotated[int, Field(gt=0)] = 1


class Receipt(BaseModel):
    total: float


@tool(permission="{item}", read_only=True)
def price(order: Order) -> Receipt:
    """Returns the price of an order."""
    return Receipt(total=order.count * 2.5)


@tool(permissions=[Permission(["{key}"], permission="remember_keys")])
def remember(key: str, value: str, ctx: SyncContext) -> str:
    """Stores a value."""
    before = ctx.state.get(key)
    ctx.state.set(key, value)
    ctx.output("stored\n")
    return f"before: {before}"


@tool
async def summarize(ctx: Context) -> None:
    """Reads two files and writes their lengths."""
    for found in await ctx.calls([("read", {"filePath": "a"}), ("read", {"filePath": "b"})]):
        await ctx.output(f"{found.title}: {len(found.text)}\n")


def test_fields_of_a_function_are_the_input() -> None:
    schema = from_struct(deploy.declaration.input_schema)
    assert schema["properties"]["env"]["enum"] == ["dev", "prod"]
    assert (schema["required"], schema["additionalProperties"]) == (["env", "service"], False)
    assert (deploy.name, deploy.description, deploy.declaration.timeout_ms) == ("deploy", "Deploys a service.", 600_000)
    (template,) = deploy.declaration.permissions
    assert (template.permission, list(template.patterns), list(template.always)) == (
        "deploy",
        ["{env}/{service}"],
        ["{env}/*"],
    )


def test_a_model_is_the_input_and_a_model_the_structured_result() -> None:
    assert from_struct(price.declaration.input_schema)["required"] == ["item"]
    assert "total" in from_struct(price.declaration.output_schema)["properties"]
    assert price.declaration.annotations.read_only
    assert run(price, Order(item="tea", count=2)).value == Receipt(total=5)
    assert run(price, {"item": "tea"}).output == '{"total":2.5}'


def test_a_body_is_run_with_answers_and_without_a_service() -> None:
    outcome = run(deploy, {"env": "prod", "service": "api"}, answers=["once"])
    assert (outcome.output, outcome.written) == ("api runs in prod", "rolling\n")
    assert [(ask.permission, list(ask.patterns)) for ask in outcome.asks] == [("deploy_traffic", ["prod/api"])]
    with pytest.raises(RefusedError, match="deploy_traffic"):
        run(deploy, {"env": "prod", "service": "api"}, answers=["reject"])
    with pytest.raises(AssertionError, match="give another answer"):
        run(deploy, {"env": "prod", "service": "api"})


def test_state_and_calls_come_from_the_test() -> None:
    outcome = run(remember, {"key": "k", "value": "new"}, state={"k": "old"})
    assert (outcome.output, outcome.state, outcome.written) == ("before: old", {"k": "new"}, "stored\n")
    assert (
        run(summarize, {}, calls={"read": lambda input: f"text of {input['filePath']}"}).output == "read: 9\nread: 9\n"
    )


def test_the_ordered_example_runs(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("one\ntwo")
    outcome = run(read_tool, {"file_path": str(tmp_path / "notes.txt")}, answers=["once"])
    assert outcome.output == "<file>\n    1→one\n    2→two\n</file>"
    assert (outcome.title, outcome.metadata) == ("notes.txt", {"truncated": False, "total_lines": 2})
    with pytest.raises(FileNotFoundError):
        run(read_tool, {"file_path": str(tmp_path / "none")}, answers=["once"])


def test_the_ordered_decorator_runs_beside_the_package(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("one\ntwo")
    tool = run_block(WHOLE).read_tool

    class Context:
        async def ask(self, permission: str, patterns: list[str], metadata: dict[str, str]) -> None:
            assert (permission, patterns) == ("read", [str(tmp_path / "notes.txt")])

    result = asyncio.run(tool({"file_path": str(tmp_path / "notes.txt"), "offset": 1}, Context()))
    assert (tool.id, result.title, result.output) == ("read", "notes.txt", "<file>\n    2→two\n</file>")


def test_define_tool_needs_no_annotation() -> None:
    @define_tool("order_tea", "Orders.", Order)
    def order(args, context):  # type: ignore[no-untyped-def]
        return ToolResult("ordered", f"{args.count} {args.item} {context.agent}", {"n": args.count})

    assert from_struct(order.declaration.input_schema)["required"] == ["item"]
    outcome = run(order, {"item": "tea", "count": 2})
    assert (outcome.title, outcome.output, outcome.metadata) == ("ordered", "2 tea build", {"n": 2})


def test_a_declared_tool_is_still_a_function() -> None:
    assert price(Order(item="tea", count=4)).total == 10
    with pytest.raises(ValueError, match="Invalid arguments for py_read"):
        asyncio.run(read_tool({"offset": "x"}, None))  # type: ignore[arg-type, misc]


def undescribed(x: int) -> str:
    return str(x)


def untyped(x) -> str:  # type: ignore[no-untyped-def]
    """Has a parameter without a type."""
    return str(x)


@pytest.mark.parametrize(("function", "error"), [(undescribed, "has no description"), (untyped, "has no type")])
def test_a_declaration_that_cannot_work_is_refused_at_once(function: Callable[..., Any], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        tool(function)


def test_a_worker_needs_tools_with_different_names() -> None:
    with pytest.raises(ValueError, match="at least one tool"):
        Worker()
    with pytest.raises(ValueError, match="same name"):
        Worker(price, price)


Kind = Literal["text", "failure"]


@tool
def choose(kind: Kind) -> ToolResult:
    """Returns a result or fails."""
    if kind == "failure":
        raise ToolFailure("no such thing: name another one", no_effects=True)
    return ToolResult(title="chosen", output="text")


def test_a_failure_of_the_body_reaches_the_test() -> None:
    assert run(choose, {"kind": "text"}).title == "chosen"
    with pytest.raises(ToolFailure, match="name another one"):
        run(choose, {"kind": "failure"})
