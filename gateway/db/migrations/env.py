"""What Alembic runs to apply the steps: on the connection that `gateway.db.migrate` hands over."""

from alembic import context
from sqlalchemy import Connection

from gateway.db.models import Table

connection: Connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Table.metadata,
    render_as_batch=connection.dialect.name == "sqlite",  # SQLite changes a column by copying its table
    compare_type=True,
)
context.run_migrations()
