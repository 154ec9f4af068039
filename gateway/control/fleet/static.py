"""Pools that somebody else runs: the replicas are the URLs of the settings, and nothing is started."""

from collections.abc import Mapping, Sequence

from gateway.control.fleet.protocol import Launch, Unit


class StaticFleet:
    """One unit a URL, always running as far as this fleet knows; drained units stay out until the next start."""

    def __init__(self, urls: Mapping[str, Sequence[str]]) -> None:
        self._units = {
            f"{pool}-{number}": Unit(f"{pool}-{number}", pool, "running", url.rstrip("/"), "static")
            for pool, several in urls.items()
            for number, url in enumerate(several, start=1)
        }

    async def observe(self) -> Sequence[Unit]:
        return tuple(self._units.values())

    async def scale(self, pool: str, replicas: int, launch: Launch | None) -> None:
        """There are as many as there are: their number is not ours to choose."""

    async def drain(self, replica: str) -> None:
        self._units.pop(replica, None)
