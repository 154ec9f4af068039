"""Settings from file and environment: what is refused and in which words, what replaces what."""

import pytest

from gateway.cli.builtin import builtin
from gateway.settings import PoolSettings, SettingsError, load


def loaded(tmp_path, text="", environ=None, *, over=None):
    file = tmp_path / "t.toml"
    file.write_text(text)
    return load(file, environ or {}, builtin() if over is None else over)


def refused(tmp_path, text="", environ=None, *, over=None) -> str:
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, text, environ, over=over)
    words = str(caught.value)
    assert "\n" not in words
    return words


SMALL = "[pools.small]\n"
URL = 'url = "http://h"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[pools.small]\nggfu = "x"', "pools.small.ggfu: unknown; did you mean gguf?"),
        ("[gateway]\nprot = 1", "gateway.prot: unknown; did you mean port?"),
        ("[gatway]\nport = 1", "gatway: unknown; did you mean gateway?"),
        ("xyzzy = 1", "t.toml: xyzzy: unknown"),
        ("[aliases.auto]\nqualty_worth = 1", "aliases.auto.qualty_worth: unknown; did you mean quality_worth?"),
        ('[[keys]]\nname = "a"\nkeey = "b"', "keys[0].keey: unknown; did you mean key?"),
        ("[[keys]]\nkey = 'a'", "keys[0].name: is missing"),
        ('keys = "a"', "a list of tables is needed here: [[keys]]"),
        ("[pools]\nsmall = 1", "pools.small: a table is needed here"),
        ("pools = 1", "pools: tables are needed here: [pools.NAME]"),
        ("gateway = 1", "gateway: a table is needed here"),
        ('[pools.small]\nbackend = "vlm"', "pools.small.backend: openai, llamacpp, vllm, tgi or trtllm is needed, not 'vlm'"),
        ('[telemetry]\nlog_level = "loud"', "telemetry.log_level: debug, info, warning or error is needed, not 'loud'"),
        ("[pools.small]\ngguf = 1", "pools.small.gguf: text is needed, not 1"),
        ('[console]\nenabled = "maybe"', "console.enabled: true or false is needed, not 'maybe'"),
        ("[aliases.auto]\npools = 3", "aliases.auto.pools: a list of texts is needed, not 3"),
        ("[pools.small]\nrecipe = 3", "pools.small.recipe: a table is needed, not 3"),
        ("[[keys]]\nname = 'a'\nkey = [1]", "keys[0].key: text is needed"),
        ("[gateway]\nport = 65536", "gateway.port: a whole number from 0 to 65535 is needed, not 65536"),
        ("[gateway]\nport = -1", "gateway.port: a whole number from 0 to 65535"),
        ("[pools.small]\nminimum = -1", "pools.small.minimum: a whole number of at least 0 is needed, not -1"),
        ("[pools.small]\nslots = 0", "pools.small.slots: a whole number of at least 1 is needed, not 0"),
        ("[pools.small]\nthreads = 0", "pools.small.threads: a whole number of at least 1"),
        ("[pools.small]\ncontext = 0", "pools.small.context: "),
        ("[pools.small]\nprefill_rate = 0", "pools.small.prefill_rate: a number over 0 is needed, not 0"),
        ("[pools.small]\ndecode_rate = nan", "pools.small.decode_rate: a number over 0 is needed, not nan"),
        ("[pools.small]\nprice = -0.5", "pools.small.price: a number of at least 0 is needed, not -0.5"),
        ("[pools.small]\nqueue_wait = -1", "pools.small.queue_wait: "),
        ("[pools.small]\nidle_timeout = 0", "pools.small.idle_timeout: "),
        ("[pools.small]\nfirst_byte_timeout = -1", "pools.small.first_byte_timeout: "),
        ("[telemetry]\nsample = 1.5", "telemetry.sample: a number from 0 to 1 is needed, not 1.5"),
        ("[gateway]\nmax_body = 0", "gateway.max_body: "),
        ("[gateway]\nshutdown_grace = -1", "gateway.shutdown_grace: "),
        ("[control]\ninterval = 0", "control.interval: "),
        ("[[keys]]\nname = 'a'\nkey = 'b'\nconcurrency = 0", "keys[0].concurrency: "),
        ("[pools.small]\nminimum = 3", "pools.small: minimum 3 is above maximum 1."),
        ('[pools.mine]\ntier = "large"', "pools.mine: say where its answers come from: url, gguf or recipe."),
        ("[pools.mine]\nurl = []", "pools.mine: say where its answers come from"),
        ('[pools.small]\nurl = "vllm.internal:8000"', 'pools.small.url: \'vllm.internal:8000\' has no scheme; write "http://vllm.internal:8000"'),
        ('[pools.small]\nurl = ["http://a", "b"]', "pools.small.url: 'b' has no scheme"),
        ('[pools.small]\nurl = "ftp://a"', "pools.small.url: 'ftp://a' is neither http:// nor https://."),
        ('[pools.small]\nurl = "http://"', "pools.small.url: 'http://' names no host."),
        ('[pools.small]\nurl = "http://a:99999"', "pools.small.url: 'http://a:99999' cannot be read"),
        ('[pools.small]\nurl = "http://a/v1?x=1"', "pools.small.url: 'http://a/v1?x=1': give the server's base address"),
        ("[aliases.none]\npools = []", "aliases.none.pools: name at least one pool."),
        ("[aliases.none]\npools = ['smal']", "aliases.none.pools: there is no pool 'smal'; did you mean small?"),
        ("[aliases.none]\npools = ['zzz']", "aliases.none.pools: there is no pool 'zzz'."),
        ("[aliases.small]\npools = ['small']", "aliases.small: a pool has this name already; choose another."),
        ('[pools.large]\ntier = "small"', "aliases.auto: small, large are all of tier small"),
        ('[pools.small]\ntier = "large"', 'say tier = "small" for one of them.'),
        ("[[keys]]\nname = 'a'\nkey = 'b'\nmodels = ['atuo']", "keys[0].models: there is no pool or alias 'atuo'; did you mean auto?"),
        ("[[keys]]\nname = 'a'\nkey = 'b'\nkey_env = 'c'", "keys[0]: give exactly one of key, key_env, key_file, sha256."),
        ("[[keys]]\nname = 'a'", "keys[0]: give exactly one of"),
        ("[pools.small]\nkey = 'b'\nkey_env = 'c'", "pools.small: give one of key, key_env, key_file."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_path(tmp_path, text, words):
    told = refused(tmp_path, text)
    assert words in told
    assert told.startswith(f"{tmp_path / 't.toml'}: ")


def test_a_secret_of_the_wrong_type_is_not_shown(tmp_path):
    assert "hush" not in refused(tmp_path, "[[keys]]\nname = 'a'\nkey = ['hush']")


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"TURNOUT__GATEWAY__PORT": "80x"}, "TURNOUT__GATEWAY__PORT: gateway.port: a whole number from 0 to 65535 is needed, not '80x'"),
        ({"TURNOUT__GATEWAY__PROT": "80"}, "TURNOUT__GATEWAY__PROT: gateway.prot: unknown; did you mean port?"),
        ({"TURNOUT__GATEWAY": "80"}, "TURNOUT__GATEWAY: gateway: a table is needed here"),
        ({"TURNOUT__GATEWAY__PORT__X": "80"}, "TURNOUT__GATEWAY__PORT__X: port is not a table."),
    ],
)  # fmt: skip
def test_a_wrong_value_of_the_environment_names_its_variable(tmp_path, environ, words):
    assert refused(tmp_path, "[gateway]\nport = 1", environ).startswith(words)


def test_a_mistake_in_the_file_is_not_blamed_on_the_environment(tmp_path):
    told = refused(tmp_path, "[gateway]\nport = -1", {"TURNOUT__GATEWAY__HOST": "h"})
    assert told.startswith(str(tmp_path))


@pytest.mark.parametrize("url", ["http://h:9201/v1", "http://h:9201/v1/", "http://h:9201/", "http://h:9201"])
def test_the_address_that_clients_are_given_is_a_pools_too(url):
    assert PoolSettings(url=url).urls == ("http://h:9201",)
    assert PoolSettings(url=(url, "https://g/a/v1")).urls == ("http://h:9201", "https://g/a")


def test_only_one_version_and_only_at_the_end_is_taken_off():
    assert PoolSettings(url=("http://h/v1/v1", "http://h/v1/x", "http://v1", "http://h/av1")).urls == (
        "http://h/v1",
        "http://h/v1/x",
        "http://v1",
        "http://h/av1",
    )


def test_a_recipe_replaces_the_built_in_one_whole(tmp_path):
    pools = loaded(tmp_path, '[pools.small.recipe]\nengine = "llamacpp"\nsource = "/m.gguf"\n').pools
    assert pools["small"].recipe == {"engine": "llamacpp", "source": "/m.gguf"}
    assert pools["large"].recipe == builtin()["pools"]["large"]["recipe"]


def test_one_field_of_a_recipe_may_come_from_the_environment(tmp_path):
    pools = loaded(tmp_path, "", {"TURNOUT__POOLS__SMALL__RECIPE__SOURCE": "/m.gguf"}).pools
    assert pools["small"].recipe == {"engine": "llamacpp", "source": "/m.gguf", "quantization": "q4_0"}


@pytest.mark.parametrize(
    "source", ['gguf = "/m.gguf"', 'url = "http://h"', 'recipe = {engine = "llamacpp", source = "/m"}']
)
def test_what_describes_the_built_in_model_falls_away_with_it(tmp_path, source):
    plain = PoolSettings()
    small = loaded(tmp_path, f"[pools.small]\n{source}\ndecode_rate = 7\n").pools["small"]
    assert (small.prefill_rate, small.decode_rate) == (plain.prefill_rate, 7)
    assert (small.context, small.threads, small.cold_start) == (16384, None, plain.cold_start)
    assert small.recipe is None or small.recipe["source"] == "/m"
    untouched = loaded(tmp_path, "[pools.small]\nslots = 2\n").pools["small"]
    assert (untouched.prefill_rate, untouched.threads) == (290, 1)


def test_the_environment_gives_a_pool_another_model_too(tmp_path):
    small = loaded(tmp_path, "", {"TURNOUT__POOLS__SMALL__URL": "http://h"}).pools["small"]
    assert (small.urls, small.recipe, small.prefill_rate) == (("http://h",), None, PoolSettings().prefill_rate)


def test_the_builtin_tree_stays_as_it_was(tmp_path):
    given = builtin()
    loaded(tmp_path, '[pools.small]\nurl = "http://h"\n', over=given)
    assert given == builtin()


def test_a_pool_can_be_switched_off(tmp_path):
    settings = loaded(tmp_path, "[pools.embed]\nenabled = false\n[pools.large]\nenabled = false\n")
    assert list(settings.pools) == ["small"]
    assert settings.aliases["auto"].pools == ("small",)


def test_an_alias_goes_with_its_last_pool(tmp_path):
    off = "[pools.small]\nenabled = false\n[pools.large]\nenabled = false\n"
    settings = loaded(tmp_path, off)
    assert (list(settings.pools), settings.aliases) == (["embed"], {})
    assert "there is no pool or alias 'auto'" in refused(tmp_path, f"{off}[[keys]]\nname='a'\nkey='b'\nmodels=['auto']")


def test_a_pool_that_is_off_needs_no_source(tmp_path):
    assert loaded(tmp_path, "[pools.mine]\nenabled = false\n", over={}).pools == {}
