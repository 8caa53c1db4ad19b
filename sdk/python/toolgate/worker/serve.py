"""Serves tools: `serve` for a program, `Worker` for an event loop of your own."""

import asyncio
import importlib.metadata
import logging
import platform
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypedDict, Unpack
from uuid import uuid4

from toolgate._connection import find_server
from toolgate._gen.worker_pb2 import WorkerHello
from toolgate.errors import ToolgateError
from toolgate.tools import Tool
from toolgate.worker.link import Link

log = logging.getLogger("toolgate.worker")

LAST_RESULTS_SECONDS = 5.0
"""Time for the results of bodies that were stopped by a second signal."""


class Worker:
    """A process that brings tools. Bodies that are `async def` run in the loop of `run`, others in threads."""

    def __init__(
        self,
        *tools: Tool[..., Any],
        url: str | None = None,
        token: str | None = None,
        ca: str | None = None,
        name: str = "",
        build_id: str = "",
        generation: int = 0,
        capacity: int = 16,
        workspaces: Sequence[str] = (),
        resume_timeout: float = 60.0,
    ) -> None:
        """Finds the service as Client does. The token needs the role `worker`; its default is TOOLGATE_TOKEN.

        `name` names the fleet: all processes with the same tools. `generation` orders builds that declare a tool
        differently. `capacity` is how many bodies may run at a time. A worker that is cut off for `resume_timeout` seconds
        stops its bodies.
        """
        if not tools:
            raise ValueError("a worker needs at least one tool: declare one with @tool")
        self._tools = {tool.name: tool for tool in tools}
        if len(self._tools) < len(tools):
            raise ValueError("two tools have the same name: give one of them another with @tool(name=…)")
        self._server = find_server(url, token, ca, is_caller=False)
        if self._server.token is None:
            flags = " ".join(f"--tool {name}" for name in self._tools)
            raise ToolgateError(
                "a worker needs a token",
                f"set TOOLGATE_TOKEN to what `toolgate token create --role worker {flags}` prints",
            )
        version = importlib.metadata.version("toolgate-client")
        self._hello = WorkerHello(
            protocol=1,
            instance_id=f"wrk_{uuid4().hex}",
            worker=name or _program_name(),
            build_id=build_id,
            generation=generation,
            tools=[tool.declaration for tool in tools],
            capacity=capacity,
            workspaces=workspaces,
            resume_ms=round(resume_timeout * 1000),
            sdk=f"toolgate-python {version}, Python {platform.python_version()}",
        )
        self._link: Link | None = None

    async def run(self) -> None:
        """Serves until the worker is drained. Raises if the service refuses it."""
        link = Link(self._server, self._hello, self._tools, asyncio.get_running_loop())
        self._link = link
        link.start()
        try:
            await asyncio.wrap_future(link.ended)
        except asyncio.CancelledError:
            link.stop_bodies()
            link.drain()
            raise

    def drain(self) -> None:
        """Takes no more work; `run` returns when the results of all bodies are recorded."""
        if self._link is not None:
            self._link.drain()

    @property
    def connected(self) -> bool:
        """The service knows the tools and may send work, for a health check."""
        return self._link is not None and self._link.ready.is_set()

    @property
    def held(self) -> list[str]:
        """The assignments whose bodies were entered and that are not over."""
        return [] if self._link is None else self._link.held

    def stop(self) -> None:
        """Drains, and stops the bodies."""
        if self._link is not None:
            self._link.drain()
            self._link.stop_bodies()


class WorkerOptions(TypedDict, total=False):
    """Options of a worker: see Worker."""

    url: str | None
    token: str | None
    ca: str | None
    name: str
    build_id: str
    generation: int
    capacity: int
    workspaces: Sequence[str]
    resume_timeout: float


def serve(*tools: Tool[..., Any], **options: Unpack[WorkerOptions]) -> None:
    """Serves tools until SIGTERM or SIGINT, which drain: bodies end, results are recorded. A second signal stops the bodies.

    Logs to stderr, unless the program has configured `logging`. Exits with status 1 if the service refuses the worker.
    """
    if not logging.root.handlers:
        logging.basicConfig(format="%(message)s")
        logging.getLogger("toolgate").setLevel(logging.INFO)
    try:
        asyncio.run(_serve(Worker(*tools, **options)))
    except ToolgateError as error:
        sys.exit(str(error))


async def _serve(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    running = loop.create_task(worker.run())
    signals = 0

    def received() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            log.info("draining: running bodies end first; a second signal stops them")
            worker.drain()
        else:
            worker.stop()
            loop.call_later(LAST_RESULTS_SECONDS, running.cancel)

    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, received)
    try:
        await running
    except asyncio.CancelledError:
        sys.exit(1)


def _program_name() -> str:
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", Path(sys.argv[0]).stem)[:64]
    return name if re.match(r"[A-Za-z]", name) else "python"
