"""What a person is told when a part dies, a build fails, a gateway starts."""

import json
import logging

import msgspec
import pytest

from gateway.cli.banner import banner
from gateway.cli.gateway import tell_start
from gateway.cli.progress import PoolView, brief, line, outlook
from gateway.cli.supervise import troubles
from gateway.db.rows import BuildRow
from gateway.settings import Key, PoolSettings, Settings


def said(level, message):
    return json.dumps({"time": "t", "level": level, "logger": "turnout.access", "message": message, "status": 200})


def test_of_a_dead_parts_log_only_what_went_wrong_is_told():
    lines = [
        said("info", "request"),
        said("warning", "the disk is full"),
        said("debug", "x"),
        said("error", "broke"),
        "",
    ]
    assert troubles([*lines, *[said("info", "request")] * 50]) == ("the disk is full", "broke")


def test_what_is_no_log_line_is_told_as_it_is():
    lines = ["Traceback (most recent call last):", "  File", "ValueError: x", '{"half a line']
    assert troubles(lines) == tuple(lines)
    assert troubles(["turnout: gateway.port: taken"]) == ("gateway.port: taken",)
    assert troubles([str(number) for number in range(9)]) == ("4", "5", "6", "7", "8")


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("fetch ended with code 1.\nerror: pip could not download x==1. Give it gguf.\nWhat pip says:\nWARNING: a\nERROR: b", "pip could not download x==1. Give it gguf."),
        ("upcycle ended with SIGKILL.", "upcycle ended with SIGKILL."),
        ("disk full", "disk full"),
        ("", ""),
    ],
)  # fmt: skip
def test_of_a_failed_build_the_reason_is_told_in_one_line(message, told):
    assert brief(message) == told


def text(keys=(), views=()):
    settings = Settings(data="/d", keys=keys, pools={"p": PoolSettings(url="http://h")})
    return banner(settings, views, key=None, token=None)


def test_only_hashes_are_called_hashes():
    assert "only its hash" in text((Key(name="a", sha256="0" * 64),))
    narrow = text((Key(name="a", key="k", models=("p",)), Key(name="b", sha256="0" * 64)))
    assert "hash" not in narrow
    assert "for some models only" in narrow


def test_what_stops_several_pools_is_told_once():
    views = [
        PoolView("small", "stuck", "no net"),
        PoolView("far", "stuck", "gone"),
        PoolView("large", "stuck", "no net"),
    ]
    shown = text(views=views)
    assert "! small, large: no net\n" in shown
    assert "! far: gone" in shown
    assert shown.count("no net") == 1


def test_a_failed_build_is_told_once_with_every_log():
    row = BuildRow(
        digest="d", recipe={}, state="failed", log="/l/1", message="fetch ended with code 1.\nerror: no net\nx"
    )
    other = msgspec.structs.replace(row, digest="e", log="/l/2")
    pools = {"small": PoolSettings(recipe={}), "large": PoolSettings(recipe={})}
    views = outlook(pools, {"small": "d", "large": "e"}, [row, other], [])
    assert line(views) == "small: build failed | large: build failed"
    assert "! small, large: build failed: no net (log: /l/1, /l/2)\n" in text(views=views)


def test_a_gateway_says_what_it_serves(caplog):
    caplog.set_level(logging.INFO)
    settings = Settings(keys=(Key(name="a", key="k"),), pools={"p": PoolSettings(url="http://h"), "q": PoolSettings()})
    tell_start(settings, ("127.0.0.1", 8000))
    assert caplog.messages == ["serving http://127.0.0.1:8000; pools: p, q; 1 key"]


def test_a_gateway_that_is_of_no_use_says_so(caplog):
    caplog.set_level(logging.INFO)
    tell_start(Settings(), ("::", 1))
    assert caplog.messages[0] == "serving http://[::]:1; pools: none; 0 keys"
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING", "WARNING"]
    assert "[[keys]]" in caplog.text
    assert "[pools.NAME]" in caplog.text
