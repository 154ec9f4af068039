"""What `turnout up` lays out before anything starts: folder, lock, secrets, port, the settings its parts read."""

import errno
import fcntl
import os
import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from gateway.cli.toml import dumps
from gateway.control.access import OWNER_ONLY, kept_secret
from gateway.settings import Console, Key, PoolSettings, Settings, SettingsError, secret


class InUse(Exception):
    """Something that only one may have is taken: the data folder or the port. The message names the way out."""


def make_folder(folder: Path) -> None:
    """The data folder, for its owner only. Raises SettingsError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        (folder / "logs").mkdir(exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"The data folder {folder} cannot be made: {error.strerror}. Use another: --data DIR"
        ) from error


@contextmanager
def alone(lock: Path, what: str) -> Generator[bool, None, None]:
    """Hold a lock that the system gives back when we end, however we end; True: its last holder was killed.

    Raises InUse.
    """
    with lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another process"
            raise InUse(f"{what} is already running on the data folder {lock.parent} ({holder}).") from None
        file.seek(0)
        killed = bool(file.read().strip())
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield killed
        file.truncate(0)


def with_secrets(settings: Settings) -> Settings:
    """The settings with a first API key and a console token, where the user has not given their own."""
    folder, console = settings.folder, settings.console
    keys = settings.keys
    if not keys:
        kept_secret(folder / "key", prefix="sk-turnout-")
        keys = (Key(name="default", key_file=str(folder / "key")),)
    if console.enabled and console.token is None and console.token_env is None and console.token_file is None:
        kept_secret(folder / "console-token")
        console = msgspec.structs.replace(console, token_file=str(folder / "console-token"))
    return msgspec.structs.replace(settings, data=str(folder), keys=keys, console=console)


def first_key(keys: tuple[Key, ...]) -> str | None:
    """The first API key whose text is known; None where only hashes are given."""
    for key in keys:
        if key.sha256 is None and not key.models:
            return secret(key.key, key.key_env, key.key_file)
    return None


def console_token(console: Console) -> str | None:
    return secret(console.token, console.token_env, console.token_file) if console.enabled else None


def simulated(settings: Settings) -> Settings:
    """The same pools with the simulator in place of the models; pools that somebody else runs stay as they are."""
    pools = {name: _simulated(pool) if pool.ours else pool for name, pool in settings.pools.items()}
    return msgspec.structs.replace(settings, pools=pools)


def _simulated(pool: PoolSettings) -> PoolSettings:
    options: dict[str, Any] = {
        "dialect": "vllm" if pool.backend_name == "openai" else pool.backend_name,
        "prefill_rate": pool.prefill_rate,
        "decode_rate": pool.decode_rate,
        **(pool.simulated or {}),
    }
    return msgspec.structs.replace(pool, simulated=options)


def write_settings(settings: Settings, file: Path) -> None:
    """The whole tree as TOML, readable by its owner only: what the parts are started with."""
    text = "# Written by `turnout up` at each start, for its parts; changes here are lost.\n" + dumps(tree(settings))
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWNER_ONLY)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(text)
    file.chmod(OWNER_ONLY)


def tree(settings: Settings) -> Mapping[str, Any]:
    """The settings as plain tables, arrays and values."""
    plain: Mapping[str, Any] = msgspec.to_builtins(settings)
    return plain


def environment(folder: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of our parts: without the settings in it, which are in the file they read, under our options.

    Where Python is told to write no byte code beside the sources, it goes to the data folder: compiling everything at
    each start would take seconds, for every replica anew.
    """
    ours = {name: value for name, value in environ.items() if not name.startswith("TURNOUT__")}
    if environ.get("PYTHONDONTWRITEBYTECODE") and not environ.get("PYTHONPYCACHEPREFIX"):
        ours |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "cache" / "bytecode")}
    return ours


def free(lock: Path) -> bool:
    """Whether nobody holds this lock now."""
    with lock.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def claim_port(host: str, port: int) -> int:
    """The port to serve on: `port` if it is free, a free one for 0. Raises InUse, SettingsError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
            tried.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                free_one = claim_port(host, 0)
                raise InUse(
                    f"Port {port} on {host} is taken. Choose another: turnout up --port {free_one}, "
                    f"or TURNOUT__GATEWAY__PORT={free_one} make dev"
                ) from error
            raise SettingsError(f"Cannot serve on {host}:{port}: {error.strerror}.") from error
        number: int = tried.getsockname()[1]
        return number
