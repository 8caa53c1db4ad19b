"""Tools for the OpenAI Agents SDK; the extra `openai-agents` installs what this needs."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, Unpack

from agents import FunctionTool
from agents.tool_context import ToolContext

from toolgate._adapter import Source, ToolOptions, schema_of
from toolgate._gen.tool_service_pb2 import ToolDefinition
from toolgate.async_client import AsyncClient


async def toolgate_tools(client: AsyncClient, **options: Unpack[ToolOptions]) -> list[FunctionTool]:
    """Returns the tools of the service for `Agent(tools=…)`. Their calls are judged by Toolgate alone, and wait for approvers."""
    source = Source(client, {"provider": "openai", **options})
    return [
        FunctionTool(
            name=tool.name,
            description=tool.description,
            params_json_schema=schema_of(tool),
            on_invoke_tool=_invoker(source, tool),
            strict_json_schema=False,
        )
        for tool in await source.definitions()
    ]


def _invoker(source: Source, tool: ToolDefinition) -> Callable[[ToolContext[Any], str], Awaitable[str]]:
    async def invoke(context: ToolContext[Any], arguments: str) -> str:
        return (await source.call(tool, json.loads(arguments or "{}"), context.tool_call_id)).text

    return invoke
