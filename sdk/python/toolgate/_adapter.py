"""Common part of the adapters of agent frameworks: the tools that they offer, and the way they make a call."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict
from uuid import uuid4

from toolgate._gen.tool_pb2 import ToolPart
from toolgate._gen.tool_service_pb2 import ToolDefinition
from toolgate._json import from_struct
from toolgate.async_client import AsyncClient, CallOptions
from toolgate.errors import CallError


class ToolOptions(TypedDict, total=False):
    """Options of the tools that a framework's agent gets."""

    session: str
    """The session of the calls. Default: one session of the client."""
    agent: str
    """The agent that calls. Default: that of the session."""
    provider: str
    """The provider of the model, to which schemas are adapted."""
    model: str
    """The model."""
    only: Collection[str]
    """The names of the tools to offer. Default: all that the agent may see."""


@dataclass(frozen=True)
class Outcome:
    """The end of a call, for a model."""

    text: str
    is_error: bool
    part: ToolPart


class Source:
    """The tools of a service as an agent sees them."""

    def __init__(self, client: AsyncClient, options: ToolOptions) -> None:
        self._client = client
        self._options = options

    async def definitions(self) -> list[ToolDefinition]:
        """Returns the tools to offer."""
        names = {name: self._options[name] for name in ("agent", "provider", "model") if name in self._options}
        if "session" in self._options:
            await self._client.create_session(self._options["session"])
        found = await self._client.tools(session=self._options.get("session", ""), **names)
        only = self._options.get("only")
        if only is None:
            return found
        missing = set(only) - {tool.name for tool in found}
        if missing:
            raise ValueError(f"the service offers no tool {', '.join(sorted(missing))}: see `client.tools()`")
        return [tool for tool in found if tool.name in only]

    async def call(self, tool: ToolDefinition, input: Mapping[str, Any], call_id: str | None) -> Outcome:
        """Makes a call and waits for its end, for an approver too. A cancelled task cancels the call.

        An error of the call is an outcome: the model reads it. The id that the model gave to its call names it, so that
        the same message of the model, read again after a restart of the program, attaches to the call.
        """
        options: CallOptions = {"definition_id": tool.definition_id, "call_id": call_id or f"call_{uuid4().hex}"}
        for name in ("session", "agent", "provider", "model"):
            if name in self._options:
                options[name] = self._options[name]
        try:
            result = await self._client.call(tool.name, input, cancel_on_abort=True, **options)
        except CallError as error:
            return Outcome(error.part.error.error, True, error.part)
        return Outcome(result.output, False, result.part)


def schema_of(tool: ToolDefinition) -> dict[str, Any]:
    """Returns the input schema without what providers refuse."""
    schema = from_struct(tool.input_schema)
    schema.pop("$schema", None)
    return schema
