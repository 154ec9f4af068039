"""Settings and rows make a catalog."""

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.control.fleet.static import StaticFleet
from gateway.control.snapshot import catalog, static_rows
from gateway.db.rows import ReplicaRow
from gateway.serve.catalog import Alias, Caller
from gateway.settings import Settings, SettingsError

URLS = ["http://a:1/", "http://b:2"]
STATES = ["joining", "ready", "draining", "gone"]


def settings(**tree) -> Settings:
    return msgspec.convert(tree, Settings)


def ours(**options) -> Settings:
    return settings(pools={"small": {"gguf": "m.gguf", **options}})


def theirs(**options) -> Settings:
    return settings(pools={"far": {"url": URLS, **options}})


def replica(**fields) -> ReplicaRow:
    given_fields = {"id": "small-1", "pool": "small", "url": "http://127.0.0.1:1", "state": "ready"}
    return ReplicaRow(**{**given_fields, **fields})


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# Keys


def test_keys_are_known_by_their_hash_alone(tmp_path):
    (tmp_path / "key").write_text("from a file\n")
    made = catalog(
        settings(
            keys=[
                {"name": "plain", "key": "sesame", "models": ["auto"], "concurrency": 2},
                {"name": "env", "key_env": "KEY", "requests_per_minute": 3},
                {"name": "file", "key_file": str(tmp_path / "key"), "tokens_per_minute": 4},
                {"name": "hash", "sha256": sha256("hashed").upper()},
            ]
        ),
        (),
        environ={"KEY": "from the environment"},
    )
    assert made.callers == {
        sha256("sesame"): Caller("plain", frozenset({"auto"}), concurrency=2),
        sha256("from the environment"): Caller("env", requests_per_minute=3),
        sha256("from a file"): Caller("file", tokens_per_minute=4),
        sha256("hashed"): Caller("hash"),
    }
    assert "sesame" not in repr(made)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ([{"name": "a", "key": "x"}, {"name": "b", "sha256": sha256("x")}], r"keys\[1\]: the same key as that of 'a'"),
        ([{"name": "a", "sha256": "abc"}], r"keys\[0\]\.sha256: give 64"),
        ([{"name": "a", "key": ""}], r"keys\[0\]: the key of 'a' is empty"),
        ([{"name": "a", "key_env": "NOT_SET"}], "NOT_SET"),
        ([{"name": "a", "key_file": "/no/such/file"}], "/no/such/file"),
    ],
)
def test_keys_that_cannot_be(keys, words):
    with pytest.raises(SettingsError, match=words):
        catalog(settings(keys=keys), (), environ={})


# Pools that are ours


@pytest.mark.parametrize("state", STATES)
def test_only_ready_replicas_are_shown(state):
    pool = catalog(ours(), [replica(state=state)], 7).pools["small"]
    assert [one.id for one in pool.replicas] == (["small-1"] if state == "ready" else [])


def test_a_replica_has_its_rows_facts_and_its_pools_access(tmp_path):
    tree = ours(key_env="SECRET", ca="/ca.pem", model="from settings")
    row = replica(served_model="from the server", slots=3, incarnation="x")
    (one,) = catalog(tree, [row], environ={"SECRET": "s3cret"}).pools["small"].replicas
    assert (one.url, one.served_model, one.slots, one.incarnation) == (row.url, "from the server", 3, "x")
    assert (one.access.key, one.access.ca) == ("s3cret", "/ca.pem")
    assert "s3cret" not in repr(one)
    (one,) = catalog(tree, [replica()], environ={"SECRET": "s3cret"}).pools["small"].replicas
    assert one.served_model == "from settings"


def test_a_missing_secret_is_told():
    with pytest.raises(SettingsError, match="SECRET"):
        catalog(ours(key_env="SECRET"), [], environ={})


def test_a_pool_has_its_settings():
    numbers = {
        "cold_start": 1.0,
        "prefill_rate": 2.0,
        "decode_rate": 3.0,
        "price": 4.0,
        "queue_limit": 5,
        "queue_wait": 6.0,
        "first_byte_timeout": 7.0,
        "idle_timeout": 8.0,
    }
    pool = catalog(ours(kind="embed", tier="large", slots=4, context=8192, **numbers), []).pools["small"]
    assert {name: getattr(pool, name) for name in numbers} == numbers
    assert (pool.name, pool.backend, pool.kind, pool.tier) == ("small", "llamacpp", "embed", "large")
    assert (pool.scalable, pool.context, pool.replicas) == (True, 2048, ())


def test_a_pool_that_may_have_no_replica_is_not_waited_for():
    assert not catalog(ours(minimum=0, maximum=0), []).pools["small"].scalable


def test_rows_of_unknown_pools_are_left_out():
    assert catalog(ours(), [replica(pool="gone")]).pools["small"].replicas == ()


def test_version_and_aliases():
    tree = settings(pools={"s": {"gguf": "m"}}, aliases={"auto": {"pools": ["s"], "quality_worth": 5.0}})
    made = catalog(tree, [], 12)
    assert (made.version, made.aliases) == (12, {"auto": Alias("auto", ("s",), 5.0)})


# Pools whose servers are not ours


def test_without_rows_every_url_counts_as_ready():
    pool = catalog(theirs(model="m", slots=2), []).pools["far"]
    assert [(one.id, one.url, one.served_model, one.slots) for one in pool.replicas] == [
        ("far-1", "http://a:1", "m", 2),
        ("far-2", "http://b:2", "m", 2),
    ]
    assert (pool.backend, pool.scalable, pool.context) == ("openai", False, None)


def test_a_row_says_what_its_server_is_worth():
    rows = [replica(id="far-1", pool="far", url="http://a:1", state="joining")]
    assert [one.url for one in catalog(theirs(), rows).pools["far"].replicas] == ["http://b:2"]


def test_a_row_whose_url_left_the_settings_counts_no_more():
    rows = [replica(id="far-1", pool="far", url="http://old:9", state="ready")]
    assert [one.url for one in catalog(theirs(), rows).pools["far"].replicas] == ["http://a:1", "http://b:2"]


def test_servers_that_changed_places_keep_their_names_apart():
    rows = [replica(id="far-2", pool="far", url="http://a:1", state="gone")]
    assert [one.id for one in catalog(theirs(), rows).pools["far"].replicas] == ["far-1", "far-2"]


async def test_names_are_those_of_the_static_fleet():
    units = await StaticFleet({"far": URLS}).observe()
    assert [(unit.id, unit.url, unit.incarnation) for unit in units] == [
        (row.id, row.url, row.incarnation) for row in static_rows(theirs())
    ]


def test_static_rows_name_only_servers_that_are_not_ours():
    tree = settings(pools={"far": {"url": "http://a:1"}, "small": {"gguf": "m"}})
    assert [(row.id, row.pool, row.state) for row in static_rows(tree)] == [("far-1", "far", "ready")]


rows_of_all_kinds = st.lists(
    st.builds(
        ReplicaRow,
        id=st.sampled_from(["small-1", "small-2", "far-1", "far-2", "odd"]),
        pool=st.sampled_from(["small", "far", "unknown"]),
        url=st.sampled_from(["http://a:1", "http://b:2", "http://c:3"]),
        state=st.sampled_from(STATES),
    ),
    max_size=6,
    unique_by=lambda row: row.id,
)


@given(rows_of_all_kinds)
def test_whatever_the_rows_only_what_is_ready_and_known_is_shown(rows):
    tree = settings(pools={"far": {"url": URLS}, "small": {"gguf": "m"}})
    made = catalog(tree, rows)
    assert set(made.pools) == {"far", "small"}
    known = {(row.id, row.url) for row in rows}
    for pool in made.pools.values():
        ids = [one.id for one in pool.replicas]
        assert ids == sorted(set(ids))
        for one in pool.replicas:
            assumed = pool.name == "far" and (one.id, one.url) not in known
            assert any(one.id == row.id and row.state == "ready" for row in rows) or assumed
    assert {one.url for one in made.pools["far"].replicas} <= {"http://a:1", "http://b:2"}
