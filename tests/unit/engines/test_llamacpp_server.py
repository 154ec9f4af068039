"""The small programs around a model file, and the server's start without its engine."""

import argparse
import sys
from types import SimpleNamespace

import pytest

from engines.errors import EngineError, GgufError
from engines.llamacpp import adopt, options, program, server
from tests.support import tiny_gguf


@pytest.fixture
def model(tmp_path):
    return tiny_gguf.write_model(tmp_path / "tiny.gguf")


@pytest.mark.parametrize("words", [[], ["--link"]])
def test_a_model_is_adopted_unchanged(model, tmp_path, words, capsys):
    target = tmp_path / "own.gguf"
    assert adopt.main([str(model), str(target), *words]) == 0
    assert target.read_bytes() == model.read_bytes()
    assert (target.stat().st_ino == model.stat().st_ino) == (words == ["--link"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("progress 1.000 own.gguf")


def test_what_is_no_model_is_not_adopted(tmp_path):
    (tmp_path / "x.gguf").write_text("hello")
    with pytest.raises(GgufError, match="not a GGUF file"):
        adopt.adopt(tmp_path / "x.gguf", tmp_path / "y.gguf", link=False)
    assert not (tmp_path / "y.gguf").exists()


def test_a_program_whose_reader_is_gone_ends_quietly(capsys):
    def work():
        raise BrokenPipeError

    assert program.run(work) == 1
    assert capsys.readouterr().err == ""


def test_without_the_engine_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    with pytest.raises(EngineError, match=r"\.venv/bin/pip install -e '\.\[local\]'"):
        server.load_engine()


class Namespace(SimpleNamespace):
    """Makes what is asked for, by its name."""

    def __getattr__(self, name: str):
        if name.isupper():
            return name
        setattr(self, name, Namespace())
        return getattr(self, name)


def parameters(*words: str):
    return server.parameters(Namespace(CommonParams=Namespace), options.parse(["-m", "/m.gguf", *words]))


def test_options_become_the_engines_parameters():
    made = parameters(
        "-a", "smol", "--port", "0", "-np", "2", "-c", "4096", "-t", "3", "-b", "128", "-ub", "64", "--metrics"
    )
    assert (made.model.path, made.model_alias, made.hostnames, made.port) == ("/m.gguf", {"smol"}, ["127.0.0.1"], 0)
    assert (made.n_parallel, made.n_ctx, made.n_batch, made.n_ubatch) == (2, 4096, 128, 64)
    assert (made.cpuparams.n_threads, made.cpuparams_batch.n_threads) == (3, 3)
    assert (made.endpoint_metrics, made.ui, made.fit_params, made.cache_ram_mib) == (True, False, False, 64)
    assert "embedding" not in vars(made)


def test_embeddings_are_pooled_and_of_length_one():
    made = parameters("--embeddings", "--pooling", "last")
    assert (made.embedding, made.embd_normalize, made.pooling_type) == (True, 2, "LLAMA_POOLING_TYPE_LAST")


def test_caches_and_attention_are_named_as_the_engine_names_them():
    made = parameters("-ctk", "q8_0", "-ctv", "q4_0", "-fa", "on", "--rope-scaling", "yarn", "--rope-freq-scale", "0.5")
    assert (made.cache_type_k, made.cache_type_v) == ("GGML_TYPE_Q8_0", "GGML_TYPE_Q4_0")
    assert made.flash_attn_type == "LLAMA_FLASH_ATTN_TYPE_ENABLED"
    assert (made.rope_scaling_type, made.rope_freq_scale) == ("LLAMA_ROPE_SCALING_TYPE_YARN", 0.5)


def test_speculation_is_off_unless_asked_for():
    assert "types" not in vars(parameters().speculative)
    made = parameters("--spec-type", "ngram-mod", "-md", "/d.gguf")
    assert made.speculative.draft.mparams.path == "/d.gguf"
    assert made.speculative.types == [
        "COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE",
        "COMMON_SPECULATIVE_TYPE_NGRAM_MOD",
    ]


def test_the_key_comes_from_where_no_other_user_can_read_it():
    assert options.key_from({"TURNOUT_ENGINE_KEY": "hush"}) == ["hush"]
    assert options.key_from({"TURNOUT_ENGINE_KEY": ""}) == options.key_from({}) == []


def test_slots_are_saved_in_a_folder():
    assert parameters("--slot-save-path", "/s").slot_save_path == "/s/"
    assert isinstance(options.parse(["-m", "x"]), argparse.Namespace)
