"""Table of finished requests: numbers and names, never prompt text. Columns as in telemetry.record.RequestRecord."""

from sqlalchemy import JSON, BigInteger
from sqlalchemy.orm import Mapped, mapped_column

from gateway.db.models.declare import Number, Table


class Requests(Table):
    """One row for each request. A client may send the same id twice, so the key is a number of our own."""

    __tablename__ = "requests"

    number: Mapped[int] = mapped_column(Number, primary_key=True)
    id: Mapped[str] = mapped_column(index=True)
    at: Mapped[float] = mapped_column(index=True)
    operation: Mapped[str]
    caller: Mapped[str]
    model: Mapped[str]
    pool: Mapped[str] = mapped_column(index=True)
    replica: Mapped[str]
    route: Mapped[str]
    status: Mapped[int]
    outcome: Mapped[str]
    error: Mapped[str]
    stream: Mapped[bool]
    form: Mapped[str]
    prompt_bytes: Mapped[int] = mapped_column(BigInteger)
    sent_bytes: Mapped[int] = mapped_column(BigInteger)
    prompt_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    prefix_hit: Mapped[float]
    queued: Mapped[float]
    decided: Mapped[float]
    ttft: Mapped[float | None]
    tpot: Mapped[float | None]
    duration: Mapped[float]
    because: Mapped[dict[str, float]] = mapped_column(JSON)
    traceparent: Mapped[str]
    attempts: Mapped[int]
