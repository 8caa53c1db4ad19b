"""Results of calls."""

from dataclasses import dataclass
from typing import Any

from toolgate._gen.tool_pb2 import FilePart, ToolPart
from toolgate._json import from_struct, from_value


@dataclass(frozen=True)
class CallResult:
    """The result of a call that completed."""

    part: ToolPart
    """The call as the contract records it."""

    @property
    def session_id(self) -> str:
        return self.part.session_id

    @property
    def call_id(self) -> str:
        return self.part.call_id

    @property
    def output(self) -> str:
        """The text for the model; a long one is truncated and names the whole output."""
        return self.part.completed.output

    @property
    def title(self) -> str:
        """A short line for people."""
        return self.part.completed.title

    @property
    def metadata(self) -> dict[str, Any]:
        """Facts that the tool reports to user interfaces."""
        return from_struct(self.part.completed.metadata)

    @property
    def structured(self) -> Any:
        """The result as JSON; None for a tool without an output schema."""
        return from_value(self.part.completed.structured_output)

    @property
    def exit(self) -> int | None:
        """The exit code of a command: a call completes also if its command fails. None for other tools."""
        value = self.metadata.get("exit")
        return value if isinstance(value, int) else None

    @property
    def attachments(self) -> list[FilePart]:
        """Files that the tool returned."""
        return list(self.part.completed.attachments)
