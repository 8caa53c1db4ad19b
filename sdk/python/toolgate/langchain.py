"""Tools for LangChain; the extra `langchain` installs what this needs."""

from contextvars import ContextVar
from typing import Any, Unpack

from langchain_core.tools import BaseTool, ToolException

from toolgate._adapter import Source, ToolOptions, schema_of
from toolgate._gen.tool_pb2 import ToolPart
from toolgate._gen.tool_service_pb2 import ToolDefinition
from toolgate.async_client import AsyncClient

_call_id: ContextVar[str | None] = ContextVar("toolgate_call_id", default=None)


async def toolgate_tools(client: AsyncClient, **options: Unpack[ToolOptions]) -> list[BaseTool]:
    """Returns the tools of the service for `create_agent(tools=…)`. The artifact of each result is its ToolPart."""
    source = Source(client, options)
    return [_ToolgateTool(source, tool) for tool in await source.definitions()]


class _ToolgateTool(BaseTool):
    """A tool of the service; it has no synchronous form."""

    def __init__(self, source: Source, tool: ToolDefinition) -> None:
        super().__init__(
            name=tool.name,
            description=tool.description,
            args_schema=schema_of(tool),
            response_format="content_and_artifact",
            handle_tool_error=True,
        )
        self._source = source
        self._tool = tool

    async def arun(
        self, tool_input: str | dict[str, Any], *args: Any, tool_call_id: str | None = None, **rest: Any
    ) -> Any:
        """Hands on the id of the call, which a tool with a schema of its own does not get otherwise."""
        token = _call_id.set(tool_call_id)
        try:
            return await super().arun(tool_input, *args, tool_call_id=tool_call_id, **rest)
        finally:
            _call_id.reset(token)

    async def _arun(self, **input: Any) -> tuple[str, ToolPart]:
        outcome = await self._source.call(self._tool, input, _call_id.get())
        if outcome.is_error:
            raise ToolException(outcome.text)
        return outcome.text, outcome.part

    def _run(self, **input: Any) -> tuple[str, ToolPart]:
        raise NotImplementedError(f"{self.name} waits for a service: call the agent with `ainvoke`")
