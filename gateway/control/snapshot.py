"""Settings and rows, turned into the one immutable catalog that the request path reads. Pure."""

import hashlib
import os
import re
from collections.abc import Mapping, Sequence

from backends.types import Access, Replica, ReplicaId
from gateway.control.access import access
from gateway.db.rows import ReplicaRow
from gateway.serve.catalog import Alias, Caller, Catalog, Pool
from gateway.settings import Key, PoolSettings, Settings, SettingsError, secret

_SHA256 = re.compile(r"[0-9a-f]{64}")


def catalog(
    settings: Settings,
    rows: Sequence[ReplicaRow],
    version: int = 0,
    environ: Mapping[str, str] = os.environ,
    *,
    engine_key: str | None = None,
) -> Catalog:
    """The whole picture. Only replicas that are `ready` are in it. Raises SettingsError where a secret is missing.

    A pool with URLs of its own takes the state of each server from its row; a server that has no row counts as
    ready, so that a gateway without a control loop works. Secrets come from the settings, never from rows.
    `engine_key` is what our own engines ask for.
    """
    seen = _seen(settings, rows)
    return Catalog(
        version=version,
        callers=_callers(settings.keys, environ),
        pools={
            name: _pool(name, entry, seen[name], access(name, entry, engine_key, environ))
            for name, entry in settings.pools.items()
        },
        aliases={name: Alias(name, alias.pools, alias.quality_worth) for name, alias in settings.aliases.items()},
    )


def static_rows(settings: Settings) -> tuple[ReplicaRow, ...]:
    """A ready replica for each URL in the settings: what a gateway goes by that no control loop informs."""
    return tuple(row for name, entry in settings.pools.items() for row in _static(name, entry))


def _seen(settings: Settings, rows: Sequence[ReplicaRow]) -> dict[str, list[ReplicaRow]]:
    """By pool, what is known of its replicas. A row whose URL has left its place in the settings counts no more."""
    seen: dict[str, list[ReplicaRow]] = {name: [] for name in settings.pools}
    probed = {(row.id, row.url): row for row in rows}
    for row in rows:
        if row.pool in seen and settings.pools[row.pool].ours:
            seen[row.pool].append(row)
    for row in static_rows(settings):
        seen[row.pool].append(probed.get((row.id, row.url), row))
    return seen


def _static(name: str, entry: PoolSettings) -> list[ReplicaRow]:
    # Names as the static fleet gives them, so that its rows are found again.
    return [
        ReplicaRow(
            id=f"{name}-{number}",
            pool=name,
            url=url,
            served_model=entry.model or "",
            slots=entry.slots_each,
            incarnation="static",
            state="ready",
            reason="from the settings, not probed",
        )
        for number, url in enumerate(entry.urls, start=1)
    ]


def _pool(name: str, entry: PoolSettings, rows: Sequence[ReplicaRow], reached: Access) -> Pool:
    ready = sorted((row for row in rows if row.state == "ready"), key=lambda row: row.id)
    return Pool(
        name=name,
        backend=entry.backend_name,
        kind=entry.kind,
        tier=entry.tier,
        served_model=entry.model or "",
        replicas=tuple(_replica(row, entry, reached) for row in ready),
        rests_at_zero=entry.ours and entry.minimum == 0,
        scalable=entry.ours and entry.maximum > 0,
        cold_start=entry.cold_start,
        # A server that is not ours refuses a prompt that is too long for it by itself.
        context=entry.context // entry.slots_each if entry.ours else None,
        prefill_rate=entry.prefill_rate,
        decode_rate=entry.decode_rate,
        price=entry.price,
        queue_limit=entry.queue_limit,
        queue_wait=entry.queue_wait,
        first_byte_timeout=entry.first_byte_timeout,
        idle_timeout=entry.idle_timeout,
    )


def _replica(row: ReplicaRow, entry: PoolSettings, reached: Access) -> Replica:
    return Replica(
        id=ReplicaId(row.id),
        url=row.url,
        served_model=row.served_model or entry.model or "",
        slots=row.slots,
        incarnation=row.incarnation,
        access=reached,
    )


def _callers(keys: Sequence[Key], environ: Mapping[str, str]) -> dict[str, Caller]:
    callers: dict[str, Caller] = {}
    for index, key in enumerate(keys):
        digest = _digest(index, key, environ)
        if digest in callers:
            raise SettingsError(f"keys[{index}]: the same key as that of {callers[digest].id!r}.")
        callers[digest] = Caller(
            id=key.name,
            models=frozenset(key.models),
            concurrency=key.concurrency,
            requests_per_minute=key.requests_per_minute,
            tokens_per_minute=key.tokens_per_minute,
        )
    return callers


def _digest(index: int, key: Key, environ: Mapping[str, str]) -> str:
    """SHA-256 of the key, in lower-case hex."""
    if key.sha256 is not None:
        digest = key.sha256.strip().lower()
        if not _SHA256.fullmatch(digest):
            raise SettingsError(f"keys[{index}].sha256: give 64 hexadecimal digits.")
        return digest
    value = secret(key.key, key.key_env, key.key_file, environ, at=f"keys[{index}].key")
    if not value:
        raise SettingsError(f"keys[{index}]: the key of {key.name!r} is empty.")
    return hashlib.sha256(value.encode()).hexdigest()
