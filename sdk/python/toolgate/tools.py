"""Declarations of tools: `@tool` and `define_tool`."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, create_model

from toolgate._gen.tool_pb2 import Preview
from toolgate._gen.tool_service_pb2 import ToolAnnotations
from toolgate._gen.worker_pb2 import (
    WORKER_AFFINITY_PREFER_SESSION,
    WORKER_AFFINITY_UNSPECIFIED,
    PermissionTemplate,
    WorkerTool,
)
from toolgate._json import to_struct
from toolgate.context import BodyContext

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class Attachment:
    """A file in a result."""

    data: bytes
    mime: str
    filename: str = ""


@dataclass
class ToolResult:
    """A result with more than its text."""

    title: str
    """A short line for people."""
    output: str | None
    """The text for the model. None: what the body wrote with `ctx.output`."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """For user interfaces."""
    attachments: list[Attachment] | None = None
    """Files, such as images."""
    note: str = ""
    """A text behind the output, also if that is truncated."""


class ToolFailure(Exception):
    """A failure whose message is for the model. Say what failed and what to do next."""

    def __init__(self, message: str, *, no_effects: bool = False) -> None:
        super().__init__(message)
        self.no_effects = no_effects
        """The tool knows that it changed nothing."""


class ChangedError(Exception):
    """The approved state is no longer there. The body raises it before it changes anything."""


@dataclass(frozen=True)
class Permission:
    """An ask with holes, such as `{env}/{service}`: the service fills them from the input, also while no worker runs."""

    patterns: Sequence[str]
    always: Sequence[str] = ()
    """Wildcards that "always" may save, such as `{env}/*`."""
    permission: str = ""
    """The kind. Default: the tool's name."""
    metadata: Mapping[str, Any] | None = None
    """For user interfaces."""


@dataclass(frozen=True)
class Ask:
    """An ask of a plan, without holes."""

    permission: str
    patterns: Sequence[str]
    always: Sequence[str] = ()
    metadata: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Plan:
    """The intended effect of a call. A plan adds asks to those of the declaration, and never replaces them."""

    title: str = ""
    asks: Sequence[Ask] = ()
    preview: Preview | None = None
    """Shown to approvers as the word of the worker."""
    detail: bytes = b""
    """Handed to the body as `ctx.detail`. An approval is bound to it, so it names what the approval depends on."""
    timeout: float = 0
    """Seconds for which this call may run. 0: as declared."""
    problem: str = ""
    """The reason why the call would fail; it then ends before an approver is asked."""


class Tool(Generic[P, R]):
    """A declared tool. Calling it calls its function."""

    def __init__(
        self, function: Callable[P, R], model: type[BaseModel], takes_model: bool, declaration: WorkerTool
    ) -> None:
        self.function = function
        self.parameters = model
        """The model that validates the input."""
        self.declaration = declaration
        """The tool as the service knows it."""
        self.is_async = inspect.iscoroutinefunction(function)
        self.planner: Callable[..., Any] | None = None
        self._takes_model = takes_model
        self._context = _context_parameter(function, takes_model)
        self.__doc__ = function.__doc__
        self.__name__ = self.name

    @property
    def name(self) -> str:
        """The name under which models call it."""
        return self.declaration.name

    id = name

    @property
    def description(self) -> str:
        """The text for the model."""
        return self.declaration.description

    def plan(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates a function that returns the Plan of a call from its input: without side effects, within 10 s."""
        self.planner = function
        self.declaration.plans = True
        return function

    def validate(self, input: Mapping[str, Any]) -> BaseModel:
        """Returns the input as the model; raises ValidationError."""
        return self.parameters.model_validate(dict(input))

    def enter(self, input: BaseModel, context: BodyContext) -> Any:
        """Calls the function as a body."""
        function: Callable[..., Any] = self.function
        named = {self._context: context} if self._context else {}
        return function(input, **named) if self._takes_model else function(**_fields(input), **named)

    def make_plan(self, input: BaseModel) -> Any:
        """Calls the planner; awaitable if that is asynchronous."""
        if self.planner is None:
            return Plan()
        return self.planner(input) if self._takes_model else self.planner(**_fields(input))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function; a mapping in place of the model is validated first."""
        first: Any = args[0] if args else None
        if not (self._takes_model and isinstance(first, Mapping)):
            return self.function(*args, **kwargs)
        try:
            model = self.validate(first)
        except ValidationError as error:
            raise ValueError(f"Invalid arguments for {self.name}: {error}") from error
        return self.function(model, *args[1:], **kwargs)  # type: ignore[arg-type]


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str = ...,
    description: str = ...,
    permission: str | Sequence[str] = ...,
    always: str | Sequence[str] = ...,
    permissions: Sequence[Permission] = ...,
    title: str = ...,
    version: str = ...,
    timeout: float = ...,
    queue_timeout: float | None = ...,
    read_only: bool = ...,
    idempotent: bool = ...,
    destructive: bool = ...,
    open_world: bool = ...,
    max_concurrent: int = ...,
    prefer_session: bool = ...,
    metadata_keys: Sequence[str] = ...,
    providers: Sequence[str] = ...,
    parameters: type[BaseModel] | None = ...,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    description: str = "",
    permission: str | Sequence[str] = (),
    always: str | Sequence[str] = (),
    permissions: Sequence[Permission] = (),
    title: str = "",
    version: str = "",
    timeout: float = 0,
    queue_timeout: float | None = None,
    read_only: bool = False,
    idempotent: bool = False,
    destructive: bool = False,
    open_world: bool = False,
    max_concurrent: int = 0,
    prefer_session: bool = False,
    metadata_keys: Sequence[str] = (),
    providers: Sequence[str] = (),
    parameters: type[BaseModel] | None = None,
) -> Any:
    """Declares a function as a tool. Its parameters are the input: one pydantic model, or fields; `ctx` is the context.

    The docstring is the description. `permission` holds the patterns that a call asks for under the tool's own name, with
    holes such as `{env}/{service}`; without it and `permissions` a call asks for the whole input. `timeout` is in seconds.
    `parameters` is the model of the input, for a function whose first parameter has no annotation.
    """

    def declare(body: Callable[..., Any]) -> Tool[..., Any]:
        model, takes_model = (parameters, True) if parameters else _input_model(body)
        named = name or body.__name__
        own = [Permission(_texts(permission), _texts(always))] if permission else []
        output = _output_schema(body)
        declaration = WorkerTool(
            name=named,
            description=description or inspect.getdoc(body) or "",
            input_schema=to_struct(model.model_json_schema()),
            output_schema=None if output is None else to_struct(output),
            annotations=ToolAnnotations(
                read_only=read_only, idempotent=idempotent, destructive=destructive, open_world=open_world
            ),
            version=version,
            permissions=[_template(each, named) for each in (*own, *permissions)],
            title=title,
            timeout_ms=round(timeout * 1000),
            queue_ms=None if queue_timeout is None else round(queue_timeout * 1000),
            max_concurrent=max_concurrent,
            affinity=WORKER_AFFINITY_PREFER_SESSION if prefer_session else WORKER_AFFINITY_UNSPECIFIED,
            metadata_keys=metadata_keys,
            providers=providers,
        )
        if not declaration.description:
            raise ValueError(f"the tool {named} has no description: give its function a docstring")
        return Tool(body, model, takes_model, declaration)

    return declare if function is None else declare(function)


def define_tool(
    tool_id: str, description: str, parameters: type[BaseModel], *, permissions: Sequence[Permission] = ()
) -> Callable[[Callable[P, R]], Tool[P, R]]:
    """Declares a function of (arguments, context) as a tool; neither needs an annotation.

    The name of a built-in tool is taken: the `read` of opencode serves as `py_read`.
    """
    return tool(name=tool_id, description=description, permissions=permissions, parameters=parameters)


def _template(declared: Permission, tool_name: str) -> PermissionTemplate:
    return PermissionTemplate(
        permission=declared.permission or tool_name,
        patterns=declared.patterns,
        always=declared.always,
        metadata=None if declared.metadata is None else to_struct(declared.metadata),
    )


def _texts(given: str | Sequence[str]) -> Sequence[str]:
    return [given] if isinstance(given, str) else given


def _fields(model: BaseModel) -> dict[str, Any]:
    return {name: getattr(model, name) for name in type(model).model_fields}


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"the types of {function.__name__} cannot be read: define {error.name} at the top of its module"
        ) from error


def _context_parameter(function: Callable[..., Any], takes_model: bool = False) -> str | None:
    """Returns the name of the parameter that gets the context: behind a model it is the only other one."""
    hints = _hints(function)
    names = list(inspect.signature(function).parameters)
    for name in names:
        hint = hints.get(name)
        if name == "ctx" or (isinstance(hint, type) and issubclass(hint, BodyContext)):
            return name
    return names[1] if takes_model and len(names) > 1 else None


def _input_model(function: Callable[..., Any]) -> tuple[type[BaseModel], bool]:
    """Returns the model of the input, and true if the function takes the model itself."""
    hints = _hints(function)
    context = _context_parameter(function)
    parameters = [each for each in inspect.signature(function).parameters.values() if each.name != context]
    if len(parameters) == 1:
        hint = hints.get(parameters[0].name)
        if isinstance(hint, type) and issubclass(hint, BaseModel):
            return hint, True
    fields: dict[str, Any] = {}
    for parameter in parameters:
        if parameter.name not in hints:
            raise TypeError(f"the parameter {parameter.name} of {function.__name__} has no type: annotate it")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints[parameter.name], default)
    return create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields), False


def _output_schema(function: Callable[..., Any]) -> dict[str, Any] | None:
    """Returns the schema of a structured result; None for text."""
    hint = _hints(function).get("return", str)
    if hint in (str, Any, None, type(None)) or (isinstance(hint, type) and issubclass(hint, ToolResult)):
        return None
    if hint == str | None:
        return None
    return TypeAdapter(hint).json_schema(mode="serialization")
