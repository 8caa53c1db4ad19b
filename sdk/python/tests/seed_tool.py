"""The example of `define_tool` in the document from which this package was ordered, with its tool and permission renamed."""

from pathlib import Path

from pydantic import BaseModel

from toolgate import ToolContext, ToolResult, define_tool


# Example: Read tool
class ReadParams(BaseModel):
    file_path: str
    offset: int = 0
    limit: int = 2000


@define_tool(
    tool_id="file_read",
    description="Read a file from the filesystem",
    parameters=ReadParams
)
async def read_tool(args: ReadParams, ctx: ToolContext) -> ToolResult:
    # Normalize path
    filepath = Path(args.file_path)
    if not filepath.is_absolute():
        filepath = Path.cwd() / filepath

    # Check permission
    await ctx.ask(
        permission="file_read",
        patterns=[str(filepath)],
        metadata={"filepath": str(filepath)}
    )

    # Read file
    if not filepath.exists():
        raise FileNotFoundError(f"File not found: {filepath}")

    text = filepath.read_text()
    lines = text.split("\n")

    # Extract range with line numbers
    selected = lines[args.offset:args.offset + args.limit]
    numbered = [
        f"{i+args.offset+1:5d}→{line}"
        for i, line in enumerate(selected)
    ]

    return ToolResult(
        title=str(filepath.name),
        output=f"<file>\n" + "\n".join(numbered) + "\n</file>",
        metadata={
            "truncated": len(lines) > args.offset + args.limit,
            "total_lines": len(lines),
        }
    )
