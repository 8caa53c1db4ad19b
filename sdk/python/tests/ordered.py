"""The example of `define_tool` in the document from which this package was ordered."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from toolgate import ToolContext, ToolResult, define_tool

DOCUMENTS = Path(__file__).parents[3] / "test/seeds"


def block(name: str) -> str:
    """Returns a code block of the order by its ID."""
    text = (DOCUMENTS / f"{name[:3]}.md").read_text()
    found = re.search(rf"^```\w+ {re.escape(name)}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1]


def run_block(text: str, **given: Any) -> SimpleNamespace:
    """Runs code as a module and returns what it defines."""
    module = {"__name__": "ordered", **given}
    exec(
        compile(f"import asyncio\nfrom pathlib import Path\nfrom pydantic import BaseModel\n{text}", "ordered", "exec"),
        module,
    )
    return SimpleNamespace(**module)


WHOLE = block("000.10")
"""It declares a decorator and types of its own, and uses them in the example of a tool."""

_, EXAMPLE = WHOLE.split("# Example: Read tool\n")
# The name of a built-in tool is taken.
read_tool = run_block(
    EXAMPLE.replace('tool_id="read"', 'tool_id="py_read"'),
    **{"define_tool": define_tool, "ToolContext": ToolContext, "ToolResult": ToolResult},
).read_tool
