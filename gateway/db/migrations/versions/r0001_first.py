"""The first tables: replicas, demand, decisions, builds, artefacts, requests, marks."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _fleet()
    _builds()
    _requests()
    marks = op.create_table(
        "marks",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("value", sa.BigInteger(), nullable=False),
    )
    op.bulk_insert(marks, [{"name": "catalog_version", "value": 1}])


def downgrade() -> None:
    for table in ("marks", "requests", "artefacts", "builds", "scale_decisions", "demand", "replicas"):
        op.drop_table(table)


def _real() -> sa.types.TypeEngine[float]:
    return sa.Double()


def _number() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _fleet() -> None:
    op.create_table(
        "replicas",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("pool", sa.Text(), nullable=False, index=True),
        sa.Column("incarnation", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("served_model", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer()),
        sa.Column("running", sa.Integer(), nullable=False),
        sa.Column("waiting", sa.Integer(), nullable=False),
        sa.Column("kv_used", _real()),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("changed_at", _real(), nullable=False),
    )
    op.create_table(
        "demand",
        sa.Column("gateway", sa.Text(), primary_key=True),
        sa.Column("pool", sa.Text(), primary_key=True),
        sa.Column("running", sa.Integer(), nullable=False),
        sa.Column("waiting", sa.Integer(), nullable=False),
        sa.Column("arrived", sa.BigInteger(), nullable=False),
        sa.Column("last_request_at", _real()),
        sa.Column("at", _real(), nullable=False),
    )
    op.create_table(
        "scale_decisions",
        sa.Column("id", _number(), primary_key=True),
        sa.Column("at", _real(), nullable=False, index=True),
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("before", sa.Integer(), nullable=False),
        sa.Column("after", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
    )


def _builds() -> None:
    op.create_table(
        "builds",
        sa.Column("digest", sa.Text(), primary_key=True),
        sa.Column("pool", sa.Text()),
        sa.Column("recipe", sa.JSON(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False, index=True),
        sa.Column("progress", _real(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("queued_at", _real(), nullable=False),
        sa.Column("started_at", _real()),
        sa.Column("ended_at", _real()),
        sa.Column("log", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("heartbeat_at", _real()),
        sa.Column("cancel", sa.Boolean(), nullable=False),
    )
    op.create_table(
        "artefacts",
        sa.Column("digest", sa.Text(), primary_key=True),
        sa.Column("engine", sa.Text(), nullable=False),
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("manifest", sa.JSON(), nullable=False),
        sa.Column("created_at", _real(), nullable=False),
    )


def _requests() -> None:
    op.create_table(
        "requests",
        sa.Column("number", _number(), primary_key=True),
        sa.Column("id", sa.Text(), nullable=False, index=True),
        sa.Column("at", _real(), nullable=False, index=True),
        sa.Column("operation", sa.Text(), nullable=False),
        sa.Column("caller", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("pool", sa.Text(), nullable=False, index=True),
        sa.Column("replica", sa.Text(), nullable=False),
        sa.Column("route", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("stream", sa.Boolean(), nullable=False),
        sa.Column("form", sa.Text(), nullable=False),
        sa.Column("prompt_bytes", sa.BigInteger(), nullable=False),
        sa.Column("sent_bytes", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=False),
        sa.Column("prefix_hit", _real(), nullable=False),
        sa.Column("queued", _real(), nullable=False),
        sa.Column("decided", _real(), nullable=False),
        sa.Column("ttft", _real()),
        sa.Column("tpot", _real()),
        sa.Column("duration", _real(), nullable=False),
        sa.Column("because", sa.JSON(), nullable=False),
        sa.Column("traceparent", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
    )
