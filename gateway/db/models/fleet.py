"""Tables of what runs: replicas, the demand on them, the decisions about their number."""

from sqlalchemy import BigInteger
from sqlalchemy.orm import Mapped, mapped_column

from gateway.db.models.declare import Number, Table


class Replicas(Table):
    """Model servers, as the control loop sees them; it alone writes here."""

    __tablename__ = "replicas"

    id: Mapped[str] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(index=True)
    incarnation: Mapped[str]
    url: Mapped[str]
    served_model: Mapped[str]
    slots: Mapped[int]
    state: Mapped[str]
    pid: Mapped[int | None]
    running: Mapped[int]
    waiting: Mapped[int]
    kv_used: Mapped[float | None]
    reason: Mapped[str]
    changed_at: Mapped[float]


class DemandReports(Table):
    """The latest report of each gateway on each pool; a gateway writes its own rows only."""

    __tablename__ = "demand"

    gateway: Mapped[str] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(primary_key=True)
    running: Mapped[int]
    waiting: Mapped[int]
    arrived: Mapped[int] = mapped_column(BigInteger)
    last_request_at: Mapped[float | None]
    at: Mapped[float]


class ScaleDecisions(Table):
    """Every change of a wanted replica count."""

    __tablename__ = "scale_decisions"

    id: Mapped[int] = mapped_column(Number, primary_key=True)
    at: Mapped[float] = mapped_column(index=True)
    pool: Mapped[str]
    before: Mapped[int]
    after: Mapped[int]
    reason: Mapped[str]


class Marks(Table):
    """Named counters; `catalog_version` grows with every change of replicas that matters to routing."""

    __tablename__ = "marks"

    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[int] = mapped_column(BigInteger)
