"""The transports that the wire tests ask with."""

from collections.abc import AsyncIterator

import pytest

from backends.httpx_upstream import HttpxUpstream
from backends.transport import Upstream
from backends.wire import WireUpstream
from tests.support.wire import NONE


@pytest.fixture
async def wire() -> AsyncIterator[WireUpstream]:
    upstream = WireUpstream(connect_timeout=1.0)
    yield upstream
    await upstream.aclose()
    assert upstream.stats() == NONE


@pytest.fixture(params=[WireUpstream, HttpxUpstream])
async def upstream(request: pytest.FixtureRequest) -> AsyncIterator[Upstream]:
    """What holds for one transport holds for the other."""
    made: Upstream = request.param()
    yield made
    await made.aclose()
