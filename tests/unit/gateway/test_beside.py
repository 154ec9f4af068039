"""A loop beside a block of code."""

import asyncio

import pytest

from gateway.control.beside import Pace, beside


async def test_hurrying_ends_one_pause_and_stopping_all():
    pace = Pace()
    async with asyncio.timeout(10):
        pace.hurry()
        await pace.pause(600)
        await pace.pause(0.001)  # a full pause again
        waiting = asyncio.create_task(pace.pause(600))
        await asyncio.sleep(0)
        assert not waiting.done()
        pace.stop()
        await waiting
        await pace.pause(600)
        await pace.pause(600)
    assert pace.stopped


async def test_a_step_is_never_cut_short():
    pace = Pace()
    steps = []

    async def run():
        while not pace.stopped:
            steps.append("begins")
            await asyncio.sleep(0.02)
            steps.append("ends")
            await pace.pause(600)

    async with asyncio.timeout(10):
        async with beside(run, pace):
            await asyncio.sleep(0)
            assert steps == ["begins"]
        assert steps == ["begins", "ends"]


async def test_it_ends_with_a_block_that_fails():
    pace = Pace()
    ended = []

    async def run():
        await pace.pause(600)
        ended.append(True)

    with pytest.raises(ValueError, match="mine"):
        async with asyncio.timeout(10), beside(run, pace):
            raise ValueError("mine")
    assert ended == [True]


async def test_a_loop_that_fails_is_not_forgotten():
    async def run():
        raise RuntimeError("of the loop")

    with pytest.raises(RuntimeError, match="of the loop"):
        async with beside(run, Pace()):
            await asyncio.sleep(0)
