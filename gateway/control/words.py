"""The overview's sentences: whether all is well, and what changed. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from gateway.control.autoscale.policy import counted
from gateway.control.picture import Event, Level, Overview, PoolView, Verdict
from gateway.db.rows import BuildRow, ReplicaRow, ScaleDecision
from telemetry.window import Rates

SOME_FAIL: Final = 0.01  # share of requests from which failures are worth a warning
MANY_FAIL: Final = 0.1  # ... and from which something is broken
ENOUGH: Final = 10  # requests, fewer of which prove nothing broken
USUAL: Final = frozenset({"", "not probed yet", "loading", "starting"})  # reasons of a replica that simply comes up


def verdict(picture: Overview) -> Verdict:
    """Is it well? What is broken comes first, then what to watch; one sentence on the load ends it."""
    found = [*_pools(picture.pools), *_around(picture), *_failures(picture.system)]
    if not found:
        return Verdict("good", f"All is well: {_answering(picture.pools)}. {_load(picture)}")
    worst: Level = "bad" if any(level == "bad" for level, _ in found) else "warn"
    ordered = sorted(found, key=lambda one: one[0] != "bad")
    return Verdict(worst, " ".join([*(text for _, text in ordered), _load(picture)]))


def _pools(pools: Sequence[PoolView]) -> Iterator[tuple[Level, str]]:
    if not pools:
        yield "warn", "No pool is configured, so nothing can be answered yet."
    for pool in pools:
        match pool.status:
            case "down":
                yield "bad", sentence(f"{pool.name} cannot answer: {pool.why or 'no replica is ready'}", capital=False)
            case "failing":
                yield "bad", f"{pool.name} fails: every replica is held back after errors."
            case "building":
                yield "warn", sentence(f"{pool.name} is being built: {pool.why}", capital=False)
            case "starting":
                yield "warn", f"{pool.name} is starting."
            case "full":
                wait = "waits" if pool.waiting == 1 else "wait"
                yield "warn", f"{counted(pool.waiting)} {wait} for a free slot in {pool.name}."
            case _:
                yield from _held(pool)


def _held(pool: PoolView) -> Iterator[tuple[Level, str]]:
    held = [tile.id for tile in pool.replicas if tile.blocked]
    if held:
        yield "warn", f"{listed(held)} {'is' if len(held) == 1 else 'are'} held back after errors."


def _around(picture: Overview) -> Iterator[tuple[Level, str]]:
    if picture.stale:
        yield "warn", "The database does not answer; the board shows what this gateway last knew."
    if picture.silent is not None:
        yield "warn", f"The control loop has been silent for {_span(picture.silent)}; nothing scales meanwhile."


def _failures(system: Rates) -> Iterator[tuple[Level, str]]:
    share = system.errors or 0.0
    if share >= SOME_FAIL:
        broken = share >= MANY_FAIL and system.count >= ENOUGH
        yield "bad" if broken else "warn", f"{percent(share)} of the last minute's requests failed."


def _answering(pools: Sequence[PoolView]) -> str:
    asleep = [pool.name for pool in pools if pool.status == "at zero"]
    awake = [pool.name for pool in pools if pool.status != "at zero"]
    parts = [f"{listed(awake)} {'answers' if len(awake) == 1 else 'answer'}"] if awake else []
    if asleep:
        parts.append(f"{listed(asleep)} {'rests' if len(asleep) == 1 else 'rest'} at zero until a request comes")
    return ", ".join(parts)


def _load(picture: Overview) -> str:
    system = picture.system
    if not system.count:
        return f"No request finished in the last minute{f'; {picture.running} running' if picture.running else ''}."
    first = f", TTFT {duration(system.ttft_p50)} at the median" if system.ttft_p50 is not None else ""
    refused = round((system.refused or 0.0) * system.count)
    ends = [*([] if system.errors else ["none failed"]), *([f"{refused:,} refused (4xx)"] if refused else [])]
    return f"{counted(system.count)} in the last minute{first}{''.join(f', {end}' for end in ends)}."


def events(
    decisions: Sequence[ScaleDecision], builds: Sequence[BuildRow], board: Sequence[ReplicaRow]
) -> Iterator[Event]:
    """What changed, in no order."""
    for change in decisions:
        yield Event(change.at, f"{change.pool} {change.before} → {change.after}", sentence(change.reason))
    for row in builds:
        yield _build(row)
    for replica in board:
        yield from _replica(replica)


def _build(row: BuildRow) -> Event:
    what = row.pool or row.digest
    match row.state:
        case "queued":
            text = row.message or "it waits for a worker"
            return Event(row.queued_at, f"Build for {what} queued", sentence(text), "warn")
        case "running":
            text = sentence(row.message or "it has begun")
            return Event(row.started_at or row.queued_at, f"Building {what}, {row.progress:.0%}", text, "warn")
        case "done":
            took = f" in {_span(row.ended_at - row.started_at)}" if row.ended_at and row.started_at else ""
            return Event(row.ended_at or row.queued_at, f"Built {what}{took}", sentence(recipe(row), capital=False))
        case "cancelled":
            text = sentence(row.message or "somebody stopped it")
            return Event(row.ended_at or row.queued_at, f"Build for {what} cancelled", text, "warn")
        case "failed":
            text = sentence(row.message or f"see its log, {row.log}")
            return Event(row.ended_at or row.queued_at, f"Build for {what} failed", text, "bad")


def _replica(row: ReplicaRow) -> Iterator[Event]:
    match row.state:
        case "gone":
            yield Event(row.changed_at, f"{row.id} has stopped", sentence(row.reason or "no reason was given"), "bad")
        case "draining":
            text = row.reason or "it finishes what it has and gets nothing new"
            yield Event(row.changed_at, f"{row.id} is leaving", sentence(text), "warn")
        case "joining" if row.reason not in USUAL:
            yield Event(row.changed_at, f"{row.id} is not ready", sentence(row.reason), "warn")
        case _:
            pass


def recipe(row: BuildRow) -> str:
    """What was built, from the recipe's own words; its digest where it says nothing."""
    words = [str(row.recipe[name]) for name in ("source", "quantization", "engine") if row.recipe.get(name)]
    experts = row.recipe.get("experts")
    return ", ".join([*words, *([f"{experts} experts"] if experts else [])]) or row.digest


def sentence(text: str, *, capital: bool = True) -> str:
    """With a capital and a full stop. A name at the start (`capital` False, or a digit) stays as it is."""
    text = text.strip()
    end = "" if text.endswith((".", "!", "?", "…")) else "."
    return (text[:1].upper() + text[1:] if capital else text) + end if text else ""


def listed(names: Sequence[str]) -> str:
    """At most three by name: "a", "a and b", "a, b and c", "5 pools"."""
    if len(names) > 3:  # noqa: PLR2004
        return f"{len(names)} pools" if names else ""
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def duration(seconds: float) -> str:
    """Two figures, or whole numbers from a hundred on, and a unit."""
    value, unit = (seconds * 1000, "ms") if seconds < 0.9995 else (seconds, "s")  # noqa: PLR2004
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.2g} {unit}"  # noqa: PLR2004


def percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %") if share >= 0.1 else f"{share * 100:.2g} %"  # noqa: PLR2004


def _span(seconds: float) -> str:
    return f"{max(seconds, 0):.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"  # noqa: PLR2004
