"""What every table shares: names for its constraints, and column types that mean the same on each database."""

from typing import Any, ClassVar

from sqlalchemy import JSON, BigInteger, Double, Integer, MetaData, Text
from sqlalchemy.orm import DeclarativeBase

Number = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up by itself only in an INTEGER key


class Table(DeclarativeBase):
    """The root of the tables. Times are Unix seconds."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {float: Double(), str: Text(), dict[str, Any]: JSON()}
