"""Errors of calls and requests, each with the next step."""

from collections.abc import Mapping
from typing import Literal

import grpc
from google.rpc import error_details_pb2, status_pb2

from toolgate._gen.tool_pb2 import ToolEffects, ToolErrorReason, ToolPart
from toolgate._next_steps import CALL_STEPS, REQUEST_STEPS


class ToolgateError(Exception):
    """Base class of the errors of this package."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(f"{message}; next: {next_step}")
        self.message = message
        """The failure and its cause."""
        self.next_step = next_step
        """The way out."""


class CallError(ToolgateError):
    """A call that ended without a result: it was refused, or it failed."""

    def __init__(self, part: ToolPart) -> None:
        self.part = part
        """The call in its terminal state."""
        self.reason = ToolErrorReason.Name(part.error.reason).removeprefix("TOOL_ERROR_REASON_")
        """The cause, such as `REJECTED` or `TIMEOUT`: see ToolErrorReason of the contract."""
        self.effects: Literal["NONE", "UNKNOWN"] = (
            "NONE" if part.error.effects == ToolEffects.TOOL_EFFECTS_NONE else "UNKNOWN"
        )
        """`NONE`: nothing was changed. `UNKNOWN`: something may have been."""
        message = f"{part.tool} ({part.call_id}) ended with {self.reason}, effects {self.effects}: {part.error.error}"
        super().__init__(
            message, CALL_STEPS.get(self.reason, "see the troubleshooting page of Toolgate for the reason")
        )


class RequestError(ToolgateError):
    """A request that the service refused. It accepted no call by this request, but may have by an earlier one of the call."""

    session_id = ""
    """The session of the call whose request was refused; empty for other requests."""
    call_id = ""
    """That call: if an earlier request of it was accepted it goes on, and `get` returns its state."""

    def __init__(self, message: str, reason: str, code: grpc.StatusCode, metadata: Mapping[str, str]) -> None:
        self.reason = reason
        """The cause, such as `ROLE_MISSING`: see ErrorReason of the contract. Empty if the service named none."""
        self.code = code
        """The status of gRPC."""
        self.metadata = dict(metadata)
        """The details of the reason."""
        step = REQUEST_STEPS.get(
            reason, "see the troubleshooting page of Toolgate for the reason, and the log of the service"
        )
        super().__init__(f"{message} [{reason or code.name}]", step)


class UnreachableError(ToolgateError, ConnectionError):
    """No service answers at the address, and none has since the client was created."""

    def __init__(self, url: str, detail: str) -> None:
        super().__init__(
            f"no service answers at {url} ({detail})",
            "start one with `toolgate serve`, or set TOOLGATE_URL to the address of one",
        )


class WaitTimeoutError(ToolgateError, TimeoutError):
    """The time limit of this client passed before the call ended. The call goes on."""

    def __init__(self, session_id: str, call_id: str, seconds: float) -> None:
        self.session_id = session_id
        self.call_id = call_id
        super().__init__(
            f"call {call_id} of session {session_id} has not ended within {seconds:g} s; it goes on",
            "call again with the same session, call_id, tool and input to wait for it, or cancel it",
        )


class RequestTimeoutError(ToolgateError, TimeoutError):
    """The service did not answer a request in time."""

    def __init__(self, url: str, seconds: float) -> None:
        super().__init__(
            f"the service at {url} did not answer within {seconds:g} s", "send the request again: nothing is done twice"
        )


def is_cut(error: grpc.aio.AioRpcError) -> bool:
    """Checks for a lost connection or a service that asks to retry; any other error is an answer."""
    if error_info(error) is not None:
        return error.code() == grpc.StatusCode.UNAVAILABLE
    lost = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.ABORTED, grpc.StatusCode.CANCELLED)
    # A connection that breaks inside a message, or a proxy in between, shows as INTERNAL or UNKNOWN without a request id.
    return error.code() in lost or "RST_STREAM" in (error.details() or "")


def request_error(error: grpc.aio.AioRpcError) -> RequestError:
    """Returns the refusal in an error of gRPC."""
    info = error_info(error)
    reason, metadata = (info.reason, info.metadata) if info else ("", {})
    return RequestError(error.details() or error.code().name, reason, error.code(), metadata)


def error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo | None:
    """Returns the reason that the service sent; None if the error came from elsewhere."""
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin" or not isinstance(value, bytes):
            continue
        for detail in status_pb2.Status.FromString(value).details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                return info
    return None
