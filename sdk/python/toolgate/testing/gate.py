"""A real service for a test: `gate`."""

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Unpack

from toolgate._gen.tool_pb2 import PermissionRequest
from toolgate.async_client import AsyncClient, CallOptions
from toolgate.client import Client
from toolgate.errors import CallError, ToolgateError
from toolgate.results import CallResult
from toolgate.testing.run import Answer
from toolgate.tools import Tool
from toolgate.worker.serve import Worker

Effect = Literal["allow", "ask", "deny"]
Policy = Mapping[str, Effect | Mapping[str, Effect]]
"""Rules by permission: an effect, or effects by pattern, of which the last that matches counts."""

STOP_SECONDS = 15.0
"""Time in which the service stops by itself."""


class Gate:
    """A running service with a private folder. `gate` starts one."""

    client: Client
    """Makes calls."""
    approver: Client
    """Answers permission requests that `call` does not: see Client.watch_asks and Client.reply."""

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        self.workspace = folder / "workspace"
        """The directory in which calls work."""
        self.url = ""
        """The address of the service; the same after each start."""
        self.asked: list[PermissionRequest] = []
        """The permission requests that `call` answered, in order."""
        self._folder = folder
        self._command = command
        self._tokens = {role: secrets.token_urlsafe(32) for role in ("caller", "approver", "worker")}
        self._process: subprocess.Popen[str] | None = None

    def token(self, role: Literal["caller", "approver", "worker"]) -> str:
        """Returns the token of a role, for programs that the test starts. That of a worker may bring the tools of the gate."""
        return self._tokens[role]

    def call(
        self,
        tool: str,
        input: Mapping[str, Any] | None = None,
        *,
        answers: Sequence[Answer] = (),
        **options: Unpack[CallOptions],
    ) -> CallResult:
        """Makes a call, gives `answers` to its permission requests in order, and returns its result.

        CallError for a call that ends without one, such as REJECTED. A request without an answer is an AssertionError, and
        ends the call. In a running event loop use `await asyncio.to_thread(gate.call, …)`.
        """
        options.setdefault("session", f"ses_{secrets.token_hex(16)}")
        return asyncio.run(self._call(tool, input, list(answers), options))

    def kill(self) -> None:
        """Kills the service (SIGKILL), as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def start(self) -> None:
        """Starts the service again, on its data and at its address."""
        host = self.url.rpartition("/")[2] or "127.0.0.1:0"
        places = {"workspace": "workspace", "data": "data", "config": "toolgate.toml"}
        flags = [word for flag, name in places.items() for word in (f"--{flag}", str(self._folder / name))]
        log = self._folder / "service.log"
        foreign = ("TOOLGATE_", "XDG_")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [*self._command, "serve", "--json", "--listen", host, *flags],
                cwd=self._folder,
                env={**environment, "HOME": str(self._folder)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ToolgateError(
                f"the service did not start: {log.read_text().strip()}", "correct `policy` and `settings`"
            )
        self.url = json.loads(line)["url"]

    async def _call(
        self, tool: str, input: Mapping[str, Any] | None, answers: list[Answer], options: CallOptions
    ) -> CallResult:
        unanswered: list[PermissionRequest] = []

        async def answer(approver: AsyncClient) -> None:
            async for ask in approver.watch_asks(options["session"]):
                self.asked.append(ask)
                if answers:
                    await approver.reply(ask, answers.pop(0))
                else:
                    unanswered.append(ask)
                    await approver.reply(ask, "reject", message="the test has no answer")

        async with (
            AsyncClient(self.url, self._tokens["caller"]) as caller,
            AsyncClient(self.url, self._tokens["approver"]) as approver,
        ):
            await caller.create_session(options["session"])
            answering = asyncio.create_task(answer(approver))
            calling = asyncio.create_task(caller.call(tool, input, **options))
            try:
                await asyncio.wait({answering, calling}, return_when=asyncio.FIRST_COMPLETED)
                if answering.done():
                    answering.result()
                return await calling
            except CallError as error:
                if not unanswered:
                    raise
                ask = unanswered[0]
                raise AssertionError(
                    f"{tool} asks for {ask.permission} {' '.join(ask.patterns)}: give another answer"
                ) from error
            finally:
                for task in (answering, calling):
                    task.cancel()
                await asyncio.wait({answering, calling})

    def _open(self) -> None:
        self.start()
        self.client = Client(self.url, self._tokens["caller"])
        self.approver = Client(self.url, self._tokens["approver"])

    def _close(self) -> None:
        for client in (self.client, self.approver):
            client.close()
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()


@contextlib.contextmanager
def gate(
    *tools: Tool[..., Any],
    policy: Policy | None = None,
    permissions: Sequence[str] = (),
    calls: Sequence[str] = (),
    settings: str = "",
    command: Sequence[str] | None = None,
) -> Iterator[Gate]:
    """Starts a real service in a temporary folder, serves `tools` to it, and stops both at the end.

    `policy` has the rules; without it the service's own hold, and tools of workers ask. `permissions` are kinds that the
    bodies ask beyond those that their tools declare, `calls` the tools that they call. `settings` is more of the service's
    configuration (TOML). `command` starts `toolgate`; default: TOOLGATE_COMMAND, otherwise the program of that name.
    """
    with tempfile.TemporaryDirectory(prefix="toolgate-gate-", ignore_cleanup_errors=True) as name:
        started = Gate(Path(name), command or _find_command())
        started.workspace.mkdir()
        names = [tool.name for tool in tools]
        kinds = {ask.permission for tool in tools for ask in tool.declaration.permissions}.difference(names)
        limits = {"tools": names or ["*"], "permissions": sorted({*kinds, *permissions}), "calls": list(calls)}
        (Path(name) / "toolgate.toml").write_text(_configuration(started, policy or {}, limits, settings))
        started._open()
        try:
            with _serving(started, tools):
                yield started
        finally:
            started._close()


@contextlib.contextmanager
def _serving(started: Gate, tools: Sequence[Tool[..., Any]]) -> Iterator[None]:
    """Serves tools from a thread of their own."""
    if not tools:
        yield
        return
    worker = Worker(*tools, url=started.url, token=started.token("worker"))
    ended = threading.Event()
    problems: list[Exception] = []

    def serve() -> None:
        try:
            asyncio.run(worker.run())
        except Exception as problem:
            problems.append(problem)
        ended.set()

    threading.Thread(target=serve, name="toolgate-gate", daemon=True).start()
    try:
        while not (worker.connected or ended.wait(0.01)):
            pass
        if problems:
            raise problems[0]
        yield
    finally:
        worker.stop()
        ended.wait(STOP_SECONDS)


def _configuration(started: Gate, policy: Policy, limits: Mapping[str, Sequence[str]], settings: str) -> str:
    """Writes texts as JSON, which TOML reads alike."""
    lines = [settings]
    for role in ("caller", "approver", "worker"):
        token = json.dumps(started.token(role))
        lines += ["[[token]]", f'id = "{role}"', f'roles = ["{role}"]', f"value = {token}"]
    lines += [f"{key} = {json.dumps(list(values))}" for key, values in limits.items()]
    for permission, rule in policy.items():
        rules = {"*": rule} if isinstance(rule, str) else rule
        lines.append(f"[permission.{json.dumps(permission)}]")
        lines += [f"{json.dumps(pattern)} = {json.dumps(effect)}" for pattern, effect in rules.items()]
    return "\n".join(lines)


def _find_command() -> Sequence[str]:
    named = os.environ.get("TOOLGATE_COMMAND")
    if named:
        return shlex.split(named)
    found = shutil.which("toolgate")
    if found is None:
        raise ToolgateError(
            "there is no program `toolgate`",
            "install the service (`npm install --global toolgate`), or let TOOLGATE_COMMAND name its command",
        )
    return [found]
