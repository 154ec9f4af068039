"""Who is let into the console, and what a browser keeps."""

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.console import session
from gateway.console.session import Door, from_here

TOKEN = "a-long-console-token"


def test_the_token_opens_and_its_cookie_is_known():
    door = Door(TOKEN)
    assert door.opens(TOKEN)
    assert door.knows(door.cookie)
    assert not door.shut


@given(st.text())
def test_nothing_else_opens_or_is_known(other):
    door = Door(TOKEN)
    assert door.opens(other) == (other == TOKEN)
    assert not door.knows(other)
    assert not door.knows(None)


def test_the_cookie_is_derived_and_tells_nothing_of_the_token():
    door = Door(TOKEN)
    assert TOKEN not in door.cookie
    assert TOKEN not in repr(door)
    assert door.cookie == Door(TOKEN).cookie != Door(TOKEN + "x").cookie
    assert not door.opens(door.cookie)
    assert not door.knows(TOKEN)


@pytest.mark.parametrize("token", [None, ""])
def test_without_a_token_nobody_is_let_in(token):
    door = Door(token)
    assert door.shut
    assert not door.opens("")
    assert not door.knows(door.cookie)
    assert not door.knows(Door(None).cookie)
    assert repr(door) == "Door(shut)"


def test_comparisons_take_the_same_time_whatever_differs(monkeypatch):
    compared, compare = [], hmac.compare_digest

    def watched(a, b):
        compared.append((a, b))
        return compare(a, b)

    monkeypatch.setattr(session.hmac, "compare_digest", watched)
    door = Door(TOKEN)
    assert not door.opens("x")
    assert not door.knows("y")
    assert compared == [(b"x", TOKEN.encode()), (b"y", door.cookie.encode())]


@pytest.mark.parametrize(
    ("origin", "host", "ours"),
    [
        (None, "a.example", True),  # no browser page sent it
        ("https://a.example", "a.example", True),  # behind a proxy that ends TLS
        ("http://127.0.0.1:8000", "127.0.0.1:8000", True),
        ("http://A.example", "a.EXAMPLE", True),
        ("http://[::1]:8000", "[::1]:8000", True),
        ("http://127.0.0.1:8001", "127.0.0.1:8000", False),
        ("https://evil.example", "a.example", False),
        ("https://a.example.evil.example", "a.example", False),
        ("null", "a.example", False),
        ("", "a.example", False),
        ("http://[", "a.example", False),
        ("null", None, False),
        ("null", "", False),
    ],
)
def test_where_a_request_comes_from(origin, host, ours):
    assert from_here(origin, host) is ours
