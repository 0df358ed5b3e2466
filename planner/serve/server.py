"""The server: in a thread of its own, on this machine's loopback only, for whoever knows its token."""

from __future__ import annotations

import secrets
import socket
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from ..basics import InputError
from .live import Live

if TYPE_CHECKING:
    import uvicorn

LOOPBACK = "127.0.0.1"
_PATIENCE_S = 10.0
"""Seconds that starting and stopping may take."""


def require_server() -> None:
    """Raises InputError saying how to get them where starlette or uvicorn is not there."""
    try:
        import starlette.applications  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise InputError("a live search needs starlette and uvicorn: pip install 'contraflow[serve]'") from None


class Server:
    """Serves a live search while it lasts.

    Args:
        live: the search. port: 0 takes a free one.

    Attributes:
        url: with the token, which every request must have.

    Raises InputError where the port is taken or the server's libraries are missing.
    """

    def __init__(self, live: Live, port: int = 0) -> None:
        require_server()
        import uvicorn

        from .app import application

        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind((LOOPBACK, port))
            self._socket.listen()
        except OSError as error:
            self._socket.close()
            raise InputError(f"cannot listen on {LOOPBACK}:{port}: {error.strerror}") from None
        self.port = int(self._socket.getsockname()[1])
        self.token = secrets.token_urlsafe(24)
        self.url = f"http://{LOOPBACK}:{self.port}/?token={self.token}"
        self.closed = threading.Event()
        app = application(live, self.token, self.port, self.closed)
        config = uvicorn.Config(
            app,
            log_config=None,  # its own would close all handlers of the process
            log_level="error",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
        )
        self._server: uvicorn.Server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="contraflow-serve", daemon=True)

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closed.set()
        self._server.should_exit = True
        self._thread.join(_PATIENCE_S)
        self._socket.close()
