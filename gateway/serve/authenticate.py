"""From the Authorization header to whom it belongs."""

import hashlib

from gateway.serve.catalog import Caller, Catalog
from gateway.serve.errors import Forbidden, Unauthenticated

SHOWN = 100  # characters of a client's text repeated in a message


def authenticate(catalog: Catalog, authorization: str | None) -> Caller:
    """The caller whose key this is. Raises Unauthenticated, which never repeats the key.

    Callers are found by the SHA-256 of their key, so how long a look-up takes says nothing of any stored key.
    """
    if not authorization:
        raise Unauthenticated("No API key was given: send the header 'Authorization: Bearer <key>'.")
    scheme, _, rest = authorization.strip().partition(" ")
    key = rest.strip()
    if scheme.lower() != "bearer" or not key:
        raise Unauthenticated("The Authorization header is not of the form 'Bearer <key>'.")
    caller = catalog.callers.get(digest(key))
    if caller is None:
        raise Unauthenticated("This API key is not known: it was mistyped, withdrawn, or belongs to another gateway.")
    return caller


def check_model(caller: Caller, model: str) -> None:
    """Raises Forbidden where the key may not use this model."""
    if not caller.may_use(model):
        raise Forbidden(f"This API key may not use the model '{model[:SHOWN]}'.", param="model")


def digest(key: str) -> str:
    """SHA-256 (hex) of a key as it came in a header, whose text ASGI servers read as Latin-1, or as it was typed."""
    try:
        raw = key.encode("latin-1")
    except UnicodeEncodeError:
        raw = key.encode(errors="surrogatepass")
    return hashlib.sha256(raw).hexdigest()
