"""Tools for the Anthropic SDK; the extra `anthropic` installs what this needs."""

from typing import Any, Unpack

from anthropic.lib.tools import BetaAsyncBuiltinFunctionTool, ToolError
from anthropic.types.beta import BetaToolParam

from toolgate._adapter import Source, ToolOptions, schema_of
from toolgate._gen.tool_service_pb2 import ToolDefinition
from toolgate.async_client import AsyncClient


async def toolgate_tools(client: AsyncClient, **options: Unpack[ToolOptions]) -> list[BetaAsyncBuiltinFunctionTool]:
    """Returns the tools of the service for `AsyncAnthropic().beta.messages.tool_runner(tools=…)`."""
    source = Source(client, {"provider": "anthropic", **options})
    return [_ToolgateTool(source, tool) for tool in await source.definitions()]


class _ToolgateTool(BetaAsyncBuiltinFunctionTool):
    """A tool of the service. The runner does not hand on the id of the model's call, so each call is a new one."""

    def __init__(self, source: Source, tool: ToolDefinition) -> None:
        self._source = source
        self._tool = tool

    def to_dict(self) -> BetaToolParam:
        """Returns the tool as the API takes it."""
        schema: Any = schema_of(self._tool)
        return {"name": self._tool.name, "description": self._tool.description, "input_schema": schema}

    async def call(self, input: object) -> str:
        """Makes the call and waits for its end."""
        if not isinstance(input, dict):
            raise ToolError(f"the input of {self._tool.name} is no object: call again with an object")
        outcome = await self._source.call(self._tool, input, None)
        if outcome.is_error:
            raise ToolError(outcome.text)
        return outcome.text
