"""Tables of engine builds and of what they made."""

from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy.orm import Mapped, mapped_column

from gateway.db.models.declare import Table


class Builds(Table):
    """One row for each recipe digest: the queue entry, its progress and its end."""

    __tablename__ = "builds"

    digest: Mapped[str] = mapped_column(primary_key=True)
    pool: Mapped[str | None]
    recipe: Mapped[dict[str, Any]]
    state: Mapped[str] = mapped_column(index=True)
    progress: Mapped[float]
    message: Mapped[str]
    attempts: Mapped[int]
    queued_at: Mapped[float]
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None]
    log: Mapped[str]
    owner: Mapped[str]
    heartbeat_at: Mapped[float | None]
    cancel: Mapped[bool]


class Artefacts(Table):
    """Files and folders that builds made."""

    __tablename__ = "artefacts"

    digest: Mapped[str] = mapped_column(primary_key=True)
    engine: Mapped[str]
    file: Mapped[str]
    bytes: Mapped[int] = mapped_column(BigInteger)
    sha256: Mapped[str]
    manifest: Mapped[dict[str, Any]]
    created_at: Mapped[float]
