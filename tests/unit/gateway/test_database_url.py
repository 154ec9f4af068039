"""Which database a URL means, and what is said where it means none."""

import importlib.util

import pytest

from gateway.db.engine import open_database, parse_url
from gateway.db.errors import BadUrl, DatabaseError, MissingDriver


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("sqlite:////data/turnout.db", "sqlite+aiosqlite:////data/turnout.db"),
        ("sqlite+aiosqlite:///here.db", "sqlite+aiosqlite:///here.db"),
        ("postgresql://ann:pw@db/name", "postgresql+asyncpg://ann:pw@db/name"),
        ("postgres://db/name", "postgresql+asyncpg://db/name"),
        ("postgresql+psycopg://db/name", "postgresql+asyncpg://db/name"),
    ],
)
def test_the_driver_is_ours(url, meant):
    assert parse_url(url).render_as_string(hide_password=False) == meant


@pytest.mark.parametrize("url", ["", "turnout.db", "sqlite://", "sqlite:///:memory:", "mysql://db/name"])
def test_what_is_no_database_of_ours(url):
    with pytest.raises(BadUrl):
        parse_url(url)


def test_a_password_is_not_shown():
    with pytest.raises(BadUrl) as caught:
        parse_url("mysql://ann:s3cret@db/name")
    assert "s3cret" not in str(caught.value)


async def test_a_missing_driver_names_the_extra(monkeypatch):
    monkeypatch.setattr("gateway.db.engine.find_spec", lambda _: None)
    with pytest.raises(MissingDriver, match=r"\.venv/bin/pip install -e '\.\[postgres\]'"):
        async with open_database("postgresql://db/name"):
            pass
    assert issubclass(MissingDriver, DatabaseError)
    assert importlib.util.find_spec("asyncpg") is not None
