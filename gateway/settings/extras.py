"""The optional parts of the installation: which setting needs which, and how it is installed."""

from importlib.util import find_spec

from gateway.settings.errors import SettingsError
from gateway.settings.tree import Settings


def install(extra: str) -> str:
    """The command that installs an extra, in a checkout."""
    return f".venv/bin/pip install -e '.[{extra}]'"


def check_broker(settings: Settings) -> None:
    """Raises SettingsError where the broker's client is missing."""
    scheme = settings.broker_url.partition("://")[0]
    if scheme in ("redis", "rediss") and find_spec("redis") is None:
        raise SettingsError(f"broker.url: Redis needs the extra `redis`: {install('redis')}")
