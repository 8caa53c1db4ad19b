"""Address, token and channel of a service."""

import os
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import grpc

DEFAULT_URL = "http://127.0.0.1:7420"

OPTIONS = [
    # Pings detect a connection that died silently; without them a stream would wait on it for ever.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.max_receive_message_length", 16 * 1_048_576),
]


@dataclass(frozen=True)
class Server:
    """The address of a service and the credentials for it."""

    url: str
    token: str | None = field(repr=False)
    ca: str | None = None
    """File of the authority that signed the certificate of the service, PEM; None: the public ones."""

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """The headers of each request."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()

    def open_channel(self) -> grpc.aio.Channel:
        """Opens a channel in the running event loop. Nothing is sent before the first request."""
        parts = urlsplit(self.url)
        target = f"{_bracketed(parts.hostname or '')}:{parts.port or (443 if parts.scheme == 'https' else 80)}"
        # A proxy from the environment cannot reach this machine.
        options = [*OPTIONS, ("grpc.enable_http_proxy", 0)] if is_loopback(self.url) else OPTIONS
        if parts.scheme == "http":
            return grpc.aio.insecure_channel(target, options=options)
        roots = Path(self.ca).read_bytes() if self.ca else None
        return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(root_certificates=roots), options=options)


def find_server(url: str | None, token: str | None, ca: str | None, *, is_caller: bool = True) -> Server:
    """Completes what is not given by TOOLGATE_URL, TOOLGATE_TOKEN and TOOLGATE_CA, for a caller also by the local token."""
    if token is not None and not token.strip():
        raise ValueError("the token is empty: pass one, or None to use TOOLGATE_TOKEN or the local caller token")
    text = (os.environ.get("TOOLGATE_URL") or DEFAULT_URL) if url is None else url
    named = text if "://" in text else f"http://{text}"
    parts = urlsplit(named)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f'"{text}" is not the address of a service: use one like {DEFAULT_URL}')
    found = token or os.environ.get("TOOLGATE_TOKEN") or (_local_token() if is_caller and is_loopback(named) else None)
    return Server(named.rstrip("/"), found, ca or os.environ.get("TOOLGATE_CA") or None)


def is_loopback(url: str) -> bool:
    """Checks that a URL names this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # another name, also one that begins like an address
        return False


def _local_token() -> str | None:
    data = os.environ.get("TOOLGATE_DATA")
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    try:
        return (Path(data) if data else home / "toolgate").joinpath("tokens", "caller").read_text().strip()
    except OSError:
        return None


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
