"""Toolgate for Python: call tools under one policy, answer permission requests, and bring tools of your own."""

from toolgate.async_client import AsyncClient, CallOptions, Reply, ReplyOptions
from toolgate.client import Client
from toolgate.context import CallStopped, ChildResult, Context, RequestProblem, SyncContext
from toolgate.errors import (
    CallError,
    RequestError,
    RequestTimeoutError,
    ToolgateError,
    UnreachableError,
    WaitTimeoutError,
)
from toolgate.results import CallResult
from toolgate.tools import (
    Ask,
    Attachment,
    ChangedError,
    Permission,
    Plan,
    Tool,
    ToolFailure,
    ToolResult,
    define_tool,
    tool,
)
from toolgate.worker.serve import Worker, serve

ToolContext = Context

__all__ = [
    "Ask",
    "AsyncClient",
    "Attachment",
    "CallError",
    "CallOptions",
    "CallResult",
    "CallStopped",
    "ChangedError",
    "ChildResult",
    "Client",
    "Context",
    "Permission",
    "Plan",
    "Reply",
    "ReplyOptions",
    "RequestError",
    "RequestProblem",
    "RequestTimeoutError",
    "SyncContext",
    "Tool",
    "ToolContext",
    "ToolFailure",
    "ToolResult",
    "ToolgateError",
    "UnreachableError",
    "WaitTimeoutError",
    "Worker",
    "define_tool",
    "serve",
    "tool",
]
