"""Tools for Pydantic AI; the extra `pydantic-ai` installs what this needs."""

from typing import Any, Unpack

from pydantic_ai import RunContext, ToolDefinition, ToolFailed
from pydantic_ai.toolsets import AbstractToolset
from pydantic_ai.toolsets.abstract import ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from toolgate._adapter import Source, ToolOptions, schema_of
from toolgate._gen import tool_service_pb2
from toolgate.async_client import AsyncClient

_ANY_OBJECT = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))


class ToolgateToolset(AbstractToolset[Any]):
    """The tools of the service, for `Agent(toolsets=[…])`. The service validates their input."""

    def __init__(self, client: AsyncClient, **options: Unpack[ToolOptions]) -> None:
        self._source = Source(client, options)
        self._tools: dict[str, tool_service_pb2.ToolDefinition] = {}

    @property
    def id(self) -> str:
        """The name of the toolset."""
        return "toolgate"

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """Returns the tools as they are now."""
        self._tools = {tool.name: tool for tool in await self._source.definitions()}
        return {
            name: ToolsetTool(
                toolset=self,
                tool_def=ToolDefinition(
                    name=name, description=tool.description, parameters_json_schema=schema_of(tool), strict=False
                ),
                max_retries=1,
                args_validator=_ANY_OBJECT,
            )
            for name, tool in self._tools.items()
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> str:
        """Makes the call and waits for its end."""
        outcome = await self._source.call(self._tools[name], tool_args, ctx.tool_call_id)
        if outcome.is_error:
            raise ToolFailed(outcome.text)
        return outcome.text
