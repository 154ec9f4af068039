"""What the types of the settings cannot say: names that must exist, values that go together."""

from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from gateway.settings.errors import SettingsError, meant
from gateway.settings.tree import SCHEMES, AliasSettings, Key, PoolSettings, Settings


def enabled(settings: Settings) -> Settings:
    """Without the pools that are switched off, and without aliases that have no other."""
    off = {name for name, entry in settings.pools.items() if not entry.enabled}
    if not off:
        return settings
    aliases = {
        name: msgspec.structs.replace(alias, pools=tuple(pool for pool in alias.pools if pool not in off))
        for name, alias in settings.aliases.items()
        if not alias.pools or not off.issuperset(alias.pools)
    }
    pools = {name: entry for name, entry in settings.pools.items() if name not in off}
    return msgspec.structs.replace(settings, pools=pools, aliases=aliases)


def check(settings: Settings) -> None:
    """Raises SettingsError at the first that does not hold."""
    for name, entry in settings.pools.items():
        _pool(f"pools.{name}", entry)
    for name, alias in settings.aliases.items():
        if name in settings.pools:
            raise SettingsError(f"aliases.{name}: a pool has this name already; choose another.")
        _alias(f"aliases.{name}", alias, settings.pools)
    for index, key in enumerate(settings.keys):
        _key(f"keys[{index}]", key, [*settings.aliases, *settings.pools])


def _pool(path: str, entry: PoolSettings) -> None:
    if entry.minimum > entry.maximum:
        raise SettingsError(f"{path}: minimum {entry.minimum} is above maximum {entry.maximum}.")
    if not entry.urls and entry.gguf is None and entry.recipe is None and entry.simulated is None:
        raise SettingsError(f"{path}: say where its answers come from: url, gguf or recipe.")
    for url in (entry.url,) if isinstance(entry.url, str) else (entry.url or ()):
        _url(f"{path}.url", url)
    if sum(one is not None for one in (entry.key, entry.key_env, entry.key_file)) > 1:
        raise SettingsError(f"{path}: give one of key, key_env, key_file.")


def _url(path: str, url: str) -> None:
    if not url.startswith(SCHEMES):
        if "://" in url:
            raise SettingsError(f"{path}: {url!r} is neither http:// nor https://.")
        raise SettingsError(f'{path}: {url!r} has no scheme; write "http://{url}" (or https://).')
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise SettingsError(f"{path}: {url!r} cannot be read: {error}.") from error
    if not host:
        raise SettingsError(f"{path}: {url!r} names no host.")
    if parts.query or parts.fragment:
        raise SettingsError(f"{path}: {url!r}: give the server's base address, without what stands after ? or #.")


def _alias(path: str, alias: AliasSettings, pools: Mapping[str, PoolSettings]) -> None:
    if not alias.pools:
        raise SettingsError(f"{path}.pools: name at least one pool.")
    for pool in alias.pools:
        if pool not in pools:
            raise SettingsError(f"{path}.pools: there is no pool {pool!r}{meant(pool, pools) or '.'}")
    chats = [pool for pool in dict.fromkeys(alias.pools) if pools[pool].kind == "chat"]
    if len(chats) > 1 and len({pools[pool].tier for pool in chats}) == 1:
        tier = pools[chats[0]].tier
        other = "large" if tier == "small" else "small"
        raise SettingsError(
            f"{path}: {', '.join(chats)} are all of tier {tier}, which leaves the classifier nothing to tell apart; "
            f'say tier = "{other}" for one of them.'
        )


def _key(path: str, key: Key, models: list[str]) -> None:
    if sum(one is not None for one in (key.key, key.key_env, key.key_file, key.sha256)) != 1:
        raise SettingsError(f"{path}: give exactly one of key, key_env, key_file, sha256.")
    for model in key.models:
        if model not in models:
            raise SettingsError(f"{path}.models: there is no pool or alias {model!r}{meant(model, models) or '.'}")
