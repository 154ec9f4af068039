"""How each pool's servers are let in to: by the keys that the settings name, and by one of our own for our engines.

An engine listens on this machine's own address, where any local user and any page in a browser may knock.
"""

import fcntl
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from backends.types import Access
from gateway.settings import PoolSettings, Settings, SettingsError, secret

VARIABLE: Final = "TURNOUT_ENGINE_KEY"  # how an engine is told: a command line can be read by every user
FILE: Final = "engine-key"
OWNER_ONLY: Final = 0o600


def accesses(settings: Settings, environ: Mapping[str, str] = os.environ) -> dict[str, Access]:
    """By pool. Raises SettingsError where a secret is missing or the data folder takes no key."""
    ours = engine_key(settings.folder) if any(entry.ours for entry in settings.pools.values()) else None
    return {name: access(name, entry, ours, environ) for name, entry in settings.pools.items()}


def access(pool: str, entry: PoolSettings, engine: str | None, environ: Mapping[str, str]) -> Access:
    """`engine` is the key of our own engines. Raises SettingsError."""
    given = secret(entry.key, entry.key_env, entry.key_file, environ, at=f"pools.{pool}.key")
    return Access(given or (engine if entry.ours else None), entry.ca)


def engine_key(folder: Path) -> str:
    """The key of the engines on this data folder, made by whichever process asks first. Raises SettingsError."""
    file = folder / FILE
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return kept_secret(file, size=32)
    except OSError as error:
        raise SettingsError(f"{file}: the key of the engines cannot be kept: {error.strerror}.") from error


def kept_secret(file: Path, *, prefix: str = "", size: int = 24) -> str:
    """A secret of `size` random bytes in a file that only its owner reads; made once, used again after."""
    with os.fdopen(os.open(file, os.O_RDWR | os.O_CREAT, OWNER_ONLY), "r+") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)  # whoever comes second waits until it is written
        kept = opened.read().strip()
        if not kept:
            kept = f"{prefix}{secrets.token_urlsafe(size)}"
            opened.seek(0)
            opened.truncate()
            opened.write(f"{kept}\n")
            opened.flush()
        os.fchmod(opened.fileno(), OWNER_ONLY)
    return kept
