"""A block that ends when its client leaves, by whichever way that becomes known."""

import asyncio
import logging

import pytest

from gateway.api import departure
from gateway.api.departure import EXTENSION, Presence


class Client:
    """A departure in the test's hands."""

    def __init__(self) -> None:
        self.call = None

    def watch(self, call):
        self.call = call

    def ignore(self):
        self.call = None


async def block(presence):
    """What became of a block that waits for long."""
    with presence:
        await asyncio.sleep(10)
        return "whole"
    return "ended"


async def test_the_block_ends_quietly_when_the_client_leaves():
    client = Client()
    work = asyncio.create_task(block(Presence(client)))
    await asyncio.sleep(0)
    client.call()
    assert await work == "ended"
    assert work.cancelling() == 0
    assert client.call is None


async def test_leaving_twice_is_leaving_once():
    client = Client()
    work = asyncio.create_task(block(Presence(client)))
    await asyncio.sleep(0)
    client.call()
    client.call()
    assert await work == "ended"


async def test_a_cancellation_from_elsewhere_passes_through():
    client = Client()
    work = asyncio.create_task(block(Presence(client)))
    await asyncio.sleep(0)
    client.call()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work


async def fails(presence, client):
    with presence:
        client.call()
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            raise KeyError from None


async def test_an_error_passes_through_although_the_client_has_left():
    client = Client()
    work = asyncio.create_task(fails(Presence(client), client))
    with pytest.raises(KeyError):
        await work


async def test_a_piece_that_nobody_takes_ends_the_block(monkeypatch, caplog):
    monkeypatch.setattr(departure, "SEND_LIMIT", 0.02)
    presence = Presence(Client())
    with caplog.at_level(logging.WARNING), presence:
        presence.began()
        await asyncio.sleep(10)
        raise AssertionError("not reached")
    assert "read nothing" in caplog.text


async def test_pieces_that_are_taken_do_not(monkeypatch):
    monkeypatch.setattr(departure, "SEND_LIMIT", 0.02)
    presence = Presence(Client())
    with presence:
        for _ in range(6):
            presence.began()
            await asyncio.sleep(0.005)
            presence.ended()
            await asyncio.sleep(0.01)
        assert not asyncio.current_task().cancelling()


def server(*messages):
    """What an ASGI server gives: these messages, then nothing more."""
    waiting = list(messages)

    async def receive():
        if not waiting:
            await asyncio.Event().wait()
        return {"type": waiting.pop(0)}

    return receive


async def test_other_servers_are_asked():
    found = departure.departure({"type": "http"}, server("http.request", "http.disconnect"))
    assert await block(Presence(found)) == "ended"


async def test_they_are_asked_no_longer_than_the_block_lasts():
    before = asyncio.all_tasks()
    with Presence(departure.departure({"type": "http", "extensions": {}}, server())):
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks() - before) == 1
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


def test_our_own_server_tells_by_itself():
    client = Client()
    assert departure.departure({"type": "http", "extensions": {EXTENSION: client}}, server()) is client
