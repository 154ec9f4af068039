"""Every setting, in one tree. Read once, at the edge; passed inwards as plain values."""

from gateway.settings.errors import SettingsError
from gateway.settings.load import load
from gateway.settings.secrets import secret
from gateway.settings.tree import (
    AliasSettings,
    Broker,
    Classifier,
    Compression,
    Console,
    Control,
    Database,
    Gateway,
    Key,
    PoolSettings,
    PrefixIndex,
    Settings,
    Telemetry,
)

__all__ = [
    "AliasSettings",
    "Broker",
    "Classifier",
    "Compression",
    "Console",
    "Control",
    "Database",
    "Gateway",
    "Key",
    "PoolSettings",
    "PrefixIndex",
    "Settings",
    "SettingsError",
    "Telemetry",
    "load",
    "secret",
]
