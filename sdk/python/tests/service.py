"""A real service as a process, and a wire to it that can be cut."""

import os
import re
import shlex
import signal
import socket
import subprocess
import threading
from pathlib import Path

ROOT = Path(__file__).parents[3]
COMMAND = shlex.split(os.environ.get("TOOLGATE_TEST_COMMAND", f"node {ROOT}/src/main.ts"))
SETTINGS = """
[sandbox]
profile = "off"
[permission]
read = "allow"
[agent.free.permission]
"*" = "allow"
"""
TOKENS = {
    "caller": "",
    "approver": "",
    "worker": 'tools = ["*"]\npermissions = ["deploy_traffic", "remember_keys", "read"]\ncalls = ["read"]\n',
}
"""Tokens by role, with what limits them."""


class Service:
    """A service with private directories and one address for all of its starts."""

    def __init__(self, folder: Path, settings: str = SETTINGS) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        self.workspace.mkdir(parents=True)
        tokens = "".join(
            f'[[token]]\nid = "{role}"\nroles = ["{role}"]\nvalue = "{token_of(role)}"\n{limits}'
            for role, limits in TOKENS.items()
        )
        (folder / "toolgate.toml").write_text(settings + tokens)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        paths = {"workspace": "workspace", "data": "data", "config": "toolgate.toml"}
        flags = [word for flag, name in paths.items() for word in (f"--{flag}", str(self.folder / name))]
        self._process = subprocess.Popen(
            [*COMMAND, "serve", "--listen", f"127.0.0.1:{self.port}", *flags],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
        )
        assert self._process.stderr is not None
        heard = ""
        for line in self._process.stderr:
            heard += line
            if re.search(r" is at .*https?://", line):
                threading.Thread(target=self._process.stderr.read, daemon=True).start()
                return
        raise AssertionError(f"the service did not start:\n{heard}")

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


class Wire:
    """Forwards connections to a port of this machine; `cut` breaks those that are open, and later ones while `is_down`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.is_down = False
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        while self._open:
            _close(self._open.pop())

    def close(self) -> None:
        _close(self._listener)
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self.is_down:
                _close(near)
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._port))
            except OSError:
                _close(near)
                continue
            self._open += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=_forward, args=(source, target), daemon=True).start()


def _forward(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    _close(source)
    _close(target)


def _close(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    end.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def token_of(name: str) -> str:
    return f"{name}-token-for-tests"
