"""What a request holds is let go the other way round, whatever goes wrong on the way; and it is noted once."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.serve.life import Held, Life


class Trail:
    """What a life writes down."""

    class meter:  # noqa: N801
        finished = True

    outcome, error = "ok", ""

    def failed(self, error):
        self.outcome, self.error = "error", type(error).__name__


def sync(log, name, *, breaks=False):
    @contextmanager
    def scope():
        try:
            yield name
        finally:
            log.append(name)
            if breaks:
                raise KeyError(name)

    return scope()


def asynchronous(log, name, *, breaks=False):
    @asynccontextmanager
    async def scope():
        try:
            yield name
        finally:
            await asyncio.sleep(0)
            log.append(name)
            if breaks:
                raise KeyError(name)

    return scope()


KINDS = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=6)


@given(kinds=KINDS, fails=st.booleans())
def test_it_ends_as_the_standard_stack_does(kinds, fails):
    """The same scopes left in the same order, and the same error in the end."""

    async def standard(log):
        async with AsyncExitStack() as stack:
            for number, (waits, breaks) in enumerate(kinds):
                if waits:
                    await stack.enter_async_context(asynchronous(log, number, breaks=breaks))
                else:
                    stack.enter_context(sync(log, number, breaks=breaks))
            if fails:
                raise ValueError

    async def ours(log):
        held, error = Held(), None
        for number, (waits, breaks) in enumerate(kinds):
            if waits:
                assert await held.enter_async(asynchronous(log, number, breaks=breaks)) == number
            else:
                assert held.enter(sync(log, number, breaks=breaks)) == number
        assert len(held) == len(kinds)
        if fails:
            error = ValueError()
        await held.leave(error)
        assert len(held) == 0
        if error is not None:
            raise error

    seen = []
    for run in (standard, ours):
        log = []
        try:
            asyncio.run(run(log))
        except (KeyError, ValueError) as error:
            log.append(repr(error))
        seen.append(log)
    assert seen[0] == seen[1]


async def test_only_what_came_after_is_left():
    log, held = [], Held()
    held.enter(sync(log, "first"))
    before = len(held)
    held.enter(sync(log, "second"))
    held.then(lambda: log.append("called"))
    await held.leave(None, before)
    assert log == ["called", "second"]
    await held.leave(None)
    assert log == ["called", "second", "first"]


@pytest.mark.parametrize(
    ("error", "outcome"), [(None, "ok"), (ValueError(), "error"), (asyncio.CancelledError(), "cancelled")]
)
@pytest.mark.parametrize("early", [False, True])
async def test_each_end_is_noted_once(error, outcome, early):
    log, trail, noted = [], Trail(), []

    async def begin(held):
        held.enter(sync(log, "scope"))
        if early and error is not None:
            raise error
        return "reply"

    async def live():
        async with Life(trail, begin, noted.append) as reply:
            assert reply == "reply"
            if error is not None:
                raise error

    if error is None:
        await live()
    else:
        with pytest.raises(type(error)):
            await live()
    assert (log, noted, trail.outcome) == (["scope"], [trail], outcome)


async def test_an_answer_without_its_end_was_interrupted():
    trail = Trail()
    trail.meter = type("meter", (), {"finished": False})

    async def begin(held):
        return "reply"

    async with Life(trail, begin, lambda _: None):
        pass
    assert (trail.outcome, trail.error) == ("interrupted", "stream_incomplete")
