"""The stream of pictures: shared, at once, never waiting for a slow page, and leaving nothing behind."""

import asyncio
import json

import pytest

from gateway.console.live import Live, event, send_pictures
from gateway.control.picture import Moment, Overview
from telemetry.window import Rates


class Looks:
    """Pictures numbered by their version."""

    def __init__(self, fail=()):
        self.count = 0
        self.fail = fail

    async def look(self):
        self.count += 1
        if self.count in self.fail:
            raise RuntimeError("no picture")
        return Overview(0.0, self.count, Rates(), 0, 0, (), ())

    async def history(self):
        yield Moment(1.0, Rates())
        yield Moment(2.0, Rates())

    def live(self, interval=0.005):
        return Live(self.look, self.history, interval)


def tasks():
    return {task.get_name() for task in asyncio.all_tasks()} & {"console pictures", "console page"}


def parsed(chunk):
    """(event, data) of each event in it."""
    found = []
    for block in chunk.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def version(chunk):
    name, data = parsed(chunk)[-1]
    assert name == "overview"
    return data["version"]


async def first(page, count):
    found = []
    async for chunk in page.pictures():
        found.append(chunk)
        if len(found) == count:
            break
    return found


async def test_the_past_and_a_first_picture_come_at_once():
    live = Looks().live(interval=3600)
    async with live.watch() as page:
        (chunk,) = await asyncio.wait_for(first(page, 1), 1)
    (past, moments), (name, picture) = parsed(chunk)
    assert (past, [moment["at"] for moment in moments]) == ("history", [1.0, 2.0])
    assert (name, picture["version"]) == ("overview", 1)


async def test_pictures_go_on_and_the_past_comes_only_once():
    live = Looks().live()
    async with live.watch() as page:
        chunks = await first(page, 4)
    assert [version(chunk) for chunk in chunks] == [1, 2, 3, 4]
    assert [len(parsed(chunk)) for chunk in chunks] == [2, 1, 1, 1]


async def test_one_look_serves_all_who_watch():
    looks = Looks()
    live = looks.live()
    async with live.watch() as one, live.watch() as two, live.watch() as three:
        before = looks.count
        for page in (one, two, three):
            await first(page, 2)
        assert looks.count - before < 6
        assert len(tasks()) == 1


async def test_a_slow_page_skips_pictures_and_holds_up_nobody():
    looks = Looks()
    live = looks.live()
    async with live.watch() as slow, live.watch() as quick:
        seen = [version(chunk) for chunk in await first(quick, 5)]
        (late,) = await first(slow, 1)
        assert version(late) >= seen[-1]
    assert seen == sorted(seen)


async def test_nobody_looks_after_the_last_page_has_left():
    looks = Looks()
    live = looks.live()
    async with live.watch():
        async with live.watch():
            assert tasks()
        assert tasks()
    assert not tasks()
    count = looks.count
    await asyncio.sleep(0.02)
    assert looks.count == count


async def test_it_begins_again_for_the_next_page():
    live = Looks().live()
    for _ in range(3):
        async with live.watch() as page:
            await first(page, 2)
        assert not tasks()


async def test_a_page_that_is_cancelled_leaves_nothing():
    live = Looks().live(interval=3600)

    async def watch():
        async with live.watch() as page:
            async for _ in page.pictures():
                pass

    task = asyncio.create_task(watch())
    await asyncio.sleep(0.01)
    assert tasks()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not tasks()


async def test_a_failed_look_is_logged_and_the_next_one_shown(caplog):
    live = Looks(fail=(2, 3)).live()
    async with live.watch() as page:
        chunks = await asyncio.wait_for(first(page, 2), 2)
    assert [version(chunk) for chunk in chunks] == [1, 4]
    assert caplog.text.count("cannot be drawn") == 2


async def test_a_first_look_that_fails_is_the_pages_own_failure():
    live = Looks(fail=(1,)).live()
    with pytest.raises(RuntimeError, match="no picture"):
        async with live.watch():
            pass
    assert not tasks()


async def test_end_ends_every_stream_and_those_that_come_after():
    live = Looks().live(interval=3600)
    async with live.watch() as one, live.watch() as two:
        await first(one, 1)
        live.end()
        assert [chunk async for chunk in one.pictures()] == []
        assert [chunk async for chunk in two.pictures()] == []
    async with live.watch() as late:
        assert [chunk async for chunk in late.pictures()] == []
    assert not tasks()


class Client:
    """The other side of an ASGI response."""

    def __init__(self):
        self.sent = []
        self.gone = asyncio.Event()

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)
        if len(self.sent) == 4:
            self.gone.set()


async def test_the_answer_ends_as_soon_as_the_browser_has_left():
    live, client = Looks().live(), Client()
    async with live.watch() as page:
        await asyncio.wait_for(send_pictures(page, [(b"x", b"y")], client.receive, client.send), 2)
    assert client.sent[0] == {"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]}
    assert [message["more_body"] for message in client.sent[1:]][-1] is False
    assert not tasks()


async def test_the_answer_ends_in_order_when_the_gateway_leaves():
    live, client = Looks().live(interval=3600), Client()
    async with live.watch() as page:
        answer = asyncio.create_task(send_pictures(page, [], client.receive, client.send))
        await asyncio.sleep(0.01)
        live.end()
        await asyncio.wait_for(answer, 1)
    assert client.sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert not tasks()


def test_an_event_is_one_line_of_json():
    made = event("overview", {"text": "two\nlines"})
    assert made == b'event: overview\ndata: {"text":"two\\nlines"}\n\n'
