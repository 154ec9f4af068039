"""What `turnout up` prints once it serves: how to reach it, and a line that works as it stands."""

import json
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from gateway.cli.progress import PoolView
from gateway.settings import Settings

ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104  where we serve, where one asks
QUESTION: Final = "What is 2+2?"


def base_url(settings: Settings) -> str:
    host = ANYWHERE.get(settings.gateway.host, settings.gateway.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.gateway.port}"


def banner(settings: Settings, views: Sequence[PoolView], *, key: str | None, token: str | None) -> str:
    """`key` is None where none is known that may ask for all: then the line names the variable to put it in."""
    url = base_url(settings)
    rows = [
        ("API", f"{url}/v1"),
        ("Key", key or _untold(settings)),
        *([("Console", f"{url}/console{f'?token={token}' if token else ''}")] if settings.console.enabled else []),
        ("Models", _models(settings)),
        ("Data", str(settings.folder)),
    ]
    troubles = [f"  ! {line}" for line in _troubles(views)]
    able = any(view.state == "ready" for view in views) or not troubles
    title = "Turnout is up; Ctrl-C stops it." if able else "Turnout runs, but no pool can answer yet; Ctrl-C stops it."
    lines = [title, "", *(f"  {name:<9}{value}" for name, value in rows)]
    return "\n".join([*lines, *(["", *troubles] if troubles else []), "", "  Try:", "", curl(settings, key), ""])


def _untold(settings: Settings) -> str:
    """What stands in the key's place: no key is known that may ask for every model."""
    if all(one.sha256 is not None for one in settings.keys):
        return "yours (only its hash is in the settings)"
    return "yours (each of those in the settings is for some models only)"


def _troubles(views: Sequence[PoolView]) -> Iterator[str]:
    """What is wrong with which pools: what stops several is told once."""
    found: dict[str, list[PoolView]] = {}
    for view in views:
        if view.state == "stuck":
            found.setdefault(f"{view.words}: {view.reason}" if view.reason else view.words, []).append(view)
    for words, several in found.items():
        logs = ", ".join(view.log for view in several if view.log)
        yield f"{', '.join(view.pool for view in several)}: {words}{f' (log: {logs})' if logs else ''}"


def curl(settings: Settings, key: str | None) -> str:
    """One shell line that asks the first model that chats."""
    chats = [name for name, pool in settings.pools.items() if pool.kind == "chat"]
    model = next(iter([*settings.aliases, *chats]), "auto")
    body = {"model": model, "max_tokens": 60, "messages": [{"role": "user", "content": QUESTION}]}
    authorization = shlex.quote(f"Authorization: Bearer {key}") if key else '"Authorization: Bearer $TURNOUT_API_KEY"'
    return (
        f"curl -sS {base_url(settings)}/v1/chat/completions -H {authorization} "
        f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"
    )


def _models(settings: Settings) -> str:
    routed = [f"{name} (routed over {', '.join(alias.pools)})" for name, alias in settings.aliases.items()]
    pools = [name if pool.minimum or not pool.ours else f"{name} (from zero)" for name, pool in settings.pools.items()]
    return ", ".join([*routed, *pools])
