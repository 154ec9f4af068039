"""Plans as data: which commands a recipe becomes, and which options a server gets."""

import sys
from pathlib import Path

import pytest

from engines import registry
from engines.errors import SourceError
from engines.llamacpp import options
from engines.llamacpp.plan import build_plan, serve_command
from engines.llamacpp.recipe import LlamaCppRecipe
from engines.llamacpp.sources import KNOWN
from engines.recipe import ServeOptions

STAGING, SOURCES = Path("/data/staging/x"), Path("/data/sources")
SMOL = "smollm2-135m-instruct"
WEIGHTS = str(SOURCES / KNOWN[SMOL].file)
FETCH = ("fetch", SMOL, str(SOURCES))
OUT = str(STAGING / "model.gguf")
DENSE = str(STAGING / "dense.gguf")


def steps(**recipe):
    plan = build_plan(LlamaCppRecipe(**recipe), STAGING, SOURCES, source_bytes=1000)
    for command in plan.commands:
        assert command.argv[:2] == (sys.executable, "-m")
        assert command.argv[2] == f"engines.llamacpp.{command.name}"
    return [(command.name, *command.argv[3:]) for command in plan.commands]


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (
            {"source": SMOL, "quantization": "q4_0"},
            [FETCH, ("requantise", WEIGHTS, OUT, "--type", "q4_0")],
        ),
        (
            {"source": SMOL, "experts": 8, "experts_used": 2},
            [FETCH, ("upcycle", WEIGHTS, OUT, "--experts", "8", "--used", "2", "--seed", "0")],
        ),
        (
            {"source": SMOL, "quantization": "q8_0", "experts": 4, "seed": 9},
            [
                FETCH,
                ("requantise", WEIGHTS, DENSE, "--type", "q8_0"),
                ("upcycle", DENSE, OUT, "--experts", "4", "--used", "2", "--seed", "9"),
            ],
        ),
        ({"source": SMOL}, [FETCH, ("adopt", WEIGHTS, OUT, "--link")]),
        ({"source": "/m/own.gguf"}, [("adopt", "/m/own.gguf", OUT)]),
        ({"source": "/m/own.GGUF", "quantization": "f16"}, [("requantise", "/m/own.GGUF", OUT, "--type", "f16")]),
    ],
)
def test_commands_of_a_recipe(recipe, expected):
    assert steps(**recipe) == expected


def test_a_plan_is_a_function_of_its_recipe():
    recipe = LlamaCppRecipe(source=SMOL, quantization="q4_0")
    assert build_plan(recipe, STAGING, SOURCES) == build_plan(recipe, STAGING, SOURCES)
    assert build_plan(recipe, STAGING, SOURCES).digest == recipe.digest


def test_a_plan_says_what_the_manifest_needs():
    plan = build_plan(LlamaCppRecipe(source=SMOL), STAGING, SOURCES)
    assert (plan.output, plan.source, plan.licence) == ("model.gguf", WEIGHTS, "Apache-2.0")
    assert set(plan.tools) == {"turnout", "gguf", "numpy"}
    assert build_plan(LlamaCppRecipe(source="/m/own.gguf"), STAGING, SOURCES).licence is None


def test_relative_and_home_paths_become_absolute(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    assert build_plan(LlamaCppRecipe(source="a.gguf"), STAGING, SOURCES).source == str(tmp_path / "a.gguf")
    assert build_plan(LlamaCppRecipe(source="~/a.gguf"), STAGING, SOURCES).source == "/home/me/a.gguf"


@pytest.mark.parametrize("source", ["smollm3", "model.bin", ""])
def test_an_unknown_source_is_refused(source):
    with pytest.raises(SourceError, match=f"known sources: {SMOL}"):
        build_plan(LlamaCppRecipe(source=source), STAGING, SOURCES)


def test_the_disk_bound_covers_what_the_builds_of_the_small_model_take():
    smol = KNOWN[SMOL]

    def disk(**recipe):
        plan = build_plan(LlamaCppRecipe(source=SMOL, **recipe), STAGING, SOURCES, source_bytes=smol.bytes)
        return plan.disk - smol.bytes - smol.wheel_bytes

    assert disk(quantization="q4_0") >= 91_726_912
    assert disk(quantization="q8_0") >= 144_811_072
    assert disk(experts=8) >= 447_283_424
    assert disk(quantization="f16", experts=8) > disk(experts=8)


def test_the_registry_looks_up_the_size_of_a_file(tmp_path):
    model = tmp_path / "own.gguf"
    model.write_bytes(bytes(1234))
    assert registry.plan(LlamaCppRecipe(source=str(model)), tmp_path, tmp_path).disk == 1234
    with pytest.raises(SourceError, match="No such file"):
        registry.plan(LlamaCppRecipe(source=str(tmp_path / "none.gguf")), tmp_path, tmp_path)


def given(command):
    assert command.argv[:3] == (sys.executable, "-m", "engines.llamacpp.server")
    return options.parse(list(command.argv[3:]))


def test_a_server_gets_the_options_of_its_replica():
    seen = given(
        serve_command(ServeOptions(name="small", model="/m.gguf", slots=2, context=4096, threads=3, drain=2.5))
    )
    assert (seen.model, seen.alias, seen.parallel, seen.ctx_size, seen.threads) == ("/m.gguf", "small", 2, 4096, 3)
    assert (seen.host, seen.port, seen.drain) == ("127.0.0.1", 0, 2.5)
    assert (seen.batch_size, seen.ubatch_size) == (64, 64)
    assert seen.watch_stdin
    assert seen.metrics
    assert not seen.embeddings


def test_an_embedding_server_takes_a_whole_text_in_one_batch():
    seen = given(serve_command(ServeOptions(name="e", model="/m.gguf", slots=4, context=8192, embeddings=True)))
    assert seen.embeddings
    assert seen.pooling == "mean"
    assert (seen.batch_size, seen.ubatch_size) == (2048, 2048)


def test_the_registry_finds_the_engine_by_its_tag():
    wanted = ServeOptions(name="x", model="/m.gguf")
    assert registry.serve("llamacpp", wanted) == serve_command(wanted)


def test_unknown_options_of_the_server_are_refused(capsys):
    with pytest.raises(SystemExit):
        options.parse(["-m", "x.gguf", "--n-gpu-layerz", "1"])
    assert "--n-gpu-layerz" in capsys.readouterr().err
