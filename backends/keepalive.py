"""Which connections are open to which server, and which of them may carry another request."""

import asyncio
import ssl
from collections.abc import Callable, Mapping

import msgspec

from backends.connection import Connection
from backends.errors import Overloaded, Unreachable


class Origin(msgspec.Struct, frozen=True):
    """Connections are shared by requests to the same origin. `ca` counts only with TLS."""

    host: str
    port: int
    tls: bool
    ca: str | None = None


class Stats(msgspec.Struct, frozen=True):
    """Connections there are: `open` = `idle` + `in_use` (those being dialled are in use)."""

    open: int = 0
    idle: int = 0
    in_use: int = 0


class _Server:
    __slots__ = ("connections", "dialling", "idle")

    def __init__(self) -> None:
        self.idle: list[Connection] = []
        self.connections: set[Connection] = set()
        self.dialling = 0


class KeepAlive:
    """The connections of one event loop, by origin. Idle ones are closed after `expiry` seconds."""

    def __init__(
        self, *, expiry: float, limit: int, connect_timeout: float, trust: Callable[[str | None], ssl.SSLContext]
    ) -> None:
        self._expiry = expiry
        self._limit = limit
        self._connect_timeout = connect_timeout
        self._trust = trust
        self._contexts: dict[str | None, ssl.SSLContext] = {}
        self._servers: dict[Origin, _Server] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    def idle(self, origin: Origin) -> Connection | None:
        """The connection that was used last, if it is young enough: older ones then get to expire."""
        server = self._servers.get(origin)
        if server is None:
            return None
        oldest = asyncio.get_running_loop().time() - self._expiry
        while server.idle:
            connection = server.idle.pop()
            if connection.idle_since > oldest and not connection.closed:
                return connection
            self._drop(server, connection)
        return None

    async def dial(self, origin: Origin, timeout: float) -> Connection:  # noqa: ASYNC109  ends with Unreachable
        """A new connection. Raises Unreachable, and Overloaded where too many are in use."""
        if self._closed:
            raise Unreachable(f"{origin.host}:{origin.port}: this client is closed")
        server = self._servers.setdefault(origin, _Server())
        if len(server.connections) + server.dialling >= self._limit:
            raise Overloaded(f"{origin.host}:{origin.port}: {self._limit} connections are in use")
        server.dialling += 1
        try:
            connection = await self._connect(origin, server, min(timeout, self._connect_timeout))
        finally:
            server.dialling -= 1
            self._forget(origin, server)
        if self._closed:
            connection.abort()
            raise Unreachable(f"{origin.host}:{origin.port}: this client is closed")
        server.connections.add(connection)
        self._servers[origin] = server
        return connection

    async def _connect(self, origin: Origin, server: _Server, timeout: float) -> Connection:  # noqa: ASYNC109
        loop = asyncio.get_running_loop()
        target = f"{origin.host}:{origin.port}"

        def lost(connection: Connection) -> None:
            self._drop(server, connection)
            self._forget(origin, server)

        try:
            context = self._context(origin.ca) if origin.tls else None
            async with asyncio.timeout(timeout):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop, target, lost), origin.host, origin.port, ssl=context
                )
        except TimeoutError as error:
            raise Unreachable(f"{target}: no connection within {timeout:g} s") from error
        except (
            OSError,
            ValueError,
        ) as error:  # ssl.SSLError is an OSError; UnicodeError of a strange host a ValueError
            raise Unreachable(f"{target}: {error}") from error
        return connection

    def _context(self, ca: str | None) -> ssl.SSLContext:
        if ca not in self._contexts:
            self._contexts[ca] = self._trust(ca)
        return self._contexts[ca]

    def give_back(self, origin: Origin, connection: Connection) -> None:
        """After an exchange: keep the connection if it is clean, else it is closed."""
        server = self._servers.get(origin)
        if connection.release() and server is not None and not self._closed:
            server.idle.append(connection)
            if self._sweeper is None:
                self._sweeper = asyncio.get_running_loop().call_later(self._expiry, self._sweep)
        else:
            connection.abort()
            if server is not None:
                self._drop(server, connection)
                self._forget(origin, server)

    def _drop(self, server: _Server, connection: Connection) -> None:
        connection.abort()
        server.connections.discard(connection)
        if connection in server.idle:
            server.idle.remove(connection)

    def _forget(self, origin: Origin, server: _Server) -> None:
        """Replicas come and go: a server without connections is not remembered."""
        if not server.connections and not server.dialling and self._servers.get(origin) is server:
            del self._servers[origin]

    def _sweep(self) -> None:
        self._sweeper = None
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._expiry
        for origin, server in list(self._servers.items()):
            for connection in [c for c in server.idle if c.idle_since <= oldest]:
                self._drop(server, connection)
            self._forget(origin, server)
        left = [connection.idle_since for server in self._servers.values() for connection in server.idle]
        if left:
            self._sweeper = loop.call_at(min(left) + self._expiry + 0.01, self._sweep)

    def stats(self) -> Stats:
        servers = self._servers.values()
        idle = sum(len(server.idle) for server in servers)
        known = sum(len(server.connections) + server.dialling for server in servers)
        return Stats(open=known, idle=idle, in_use=known - idle)

    def by_origin(self) -> Mapping[Origin, int]:
        """Open connections by server."""
        return {origin: len(server.connections) for origin, server in self._servers.items()}

    async def aclose(self) -> None:
        """Close everything and wait until the event loop has let go of the sockets."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        connections = [connection for server in self._servers.values() for connection in server.connections]
        self._servers.clear()
        for connection in connections:
            connection.abort()
        for _ in range(100):
            if all(connection.closed for connection in connections):
                return
            await asyncio.sleep(0.01)
