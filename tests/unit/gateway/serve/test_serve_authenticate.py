import hashlib

import pytest

from gateway.serve.authenticate import authenticate, check_model, digest
from gateway.serve.catalog import Caller, Catalog
from gateway.serve.errors import Forbidden, Unauthenticated

KEY = "sk-turnout-0123456789"
CATALOG = Catalog(callers={hashlib.sha256(KEY.encode()).hexdigest(): Caller("alice")})


@pytest.mark.parametrize("header", [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER   {KEY}  ", f"  Bearer {KEY}\t"])
def test_a_known_key_gives_its_caller(header):
    assert authenticate(CATALOG, header).id == "alice"


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (None, "No API key was given"),
        ("", "No API key was given"),
        ("Bearer", "not of the form"),
        ("Bearer ", "not of the form"),
        (KEY, "not of the form"),
        (f"Basic {KEY}", "not of the form"),
        (f"Bearer{KEY}", "not of the form"),
        ("Bearer sk-wrong", "not known"),
        (f"Bearer {KEY}x", "not known"),
        (f"Bearer {KEY.upper()}", "not known"),
        (f"Bearer {KEY} {KEY}", "not known"),
        ("Bearer \N{SNOWMAN}", "not known"),
        ("Bearer \udcff", "not known"),
    ],
)
def test_the_refusal_says_what_is_wrong_and_never_the_key(header, says):
    with pytest.raises(Unauthenticated, match=says) as caught:
        authenticate(CATALOG, header)
    assert caught.value.status == 401
    assert "sk-" not in str(caught.value)
    assert KEY not in str(caught.value)


def test_a_hash_is_not_a_key():
    (stored,) = CATALOG.callers
    with pytest.raises(Unauthenticated):
        authenticate(CATALOG, f"Bearer {stored}")


def test_a_key_is_its_bytes_however_the_server_reads_headers():
    key = "schlüssel"
    catalog = Catalog(callers={hashlib.sha256(key.encode()).hexdigest(): Caller("bob")})
    as_asgi_reads_it = f"Bearer {key}".encode().decode("latin-1")
    assert authenticate(catalog, as_asgi_reads_it).id == "bob"


def test_without_callers_nobody_comes_in():
    with pytest.raises(Unauthenticated):
        authenticate(Catalog(), f"Bearer {KEY}")


def test_the_digest_is_plain_sha256():
    assert digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_key_for_every_model():
    check_model(Caller("a"), "anything")


def test_a_key_for_some_models():
    caller = Caller("a", models=frozenset({"small"}))
    check_model(caller, "small")
    with pytest.raises(Forbidden, match="'large'") as caught:
        check_model(caller, "large")
    assert (caught.value.status, caught.value.param) == (403, "model")


def test_a_long_model_name_is_not_repeated_whole():
    with pytest.raises(Forbidden) as caught:
        check_model(Caller("a", models=frozenset({"small"})), "x" * 10_000)
    assert len(str(caught.value)) < 200
