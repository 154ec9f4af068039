"""Upcycling: equal experts, a seeded router, and refusals."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as G
from gguf import GGUFReader

from engines import progress
from engines.errors import GgufError
from engines.llamacpp.upcycle import main, upcycle
from tests.support import tiny_gguf

EXPERTS, USED = 4, 2


def quiet(_fraction, _text): ...


@pytest.fixture
def dense(tmp_path):
    return tiny_gguf.write_model(tmp_path / "dense.gguf")


@pytest.fixture
def mixture(dense, tmp_path):
    return upcycle(dense, tmp_path / "moe.gguf", EXPERTS, USED, 7, quiet)


def test_every_expert_is_the_dense_block(dense, mixture):
    before, after = tiny_gguf.values(dense), tiny_gguf.values(mixture)
    for layer in range(tiny_gguf.LAYERS):
        for part in ("gate", "up", "down"):
            experts = after[f"blk.{layer}.ffn_{part}_exps.weight"]
            one = before[f"blk.{layer}.ffn_{part}.weight"]
            assert experts.shape == (EXPERTS, *one.shape)
            assert all(np.array_equal(expert, one) for expert in experts)


def test_every_layer_has_a_router_of_its_own(mixture):
    routers = [tiny_gguf.values(mixture)[f"blk.{layer}.ffn_gate_inp.weight"] for layer in range(tiny_gguf.LAYERS)]
    assert all(router.shape == (EXPERTS, tiny_gguf.WIDTH) for router in routers)
    assert not np.array_equal(*routers)
    assert 0.4 < np.std(routers) < 0.6
    assert tiny_gguf.kinds(mixture)["blk.0.ffn_gate_inp.weight"] == G.F32


def test_what_is_no_feed_forward_block_stays(dense, mixture):
    before, after = tiny_gguf.raw(dense), tiny_gguf.raw(mixture)
    stays = [name for name in before if "ffn" not in name]
    assert len(stays) == 1 + 2 * tiny_gguf.LAYERS
    assert all(after[name] == before[name] for name in stays)
    assert not any(name in after for name in before if "ffn" in name)


def test_metadata_say_what_it_is(dense, mixture):
    before, after = tiny_gguf.metadata(dense), tiny_gguf.metadata(mixture)
    changed = {key: value for key, value in after.items() if before.get(key) != value}
    assert changed == {
        "general.name": "Tiny, upcycled to 4 experts, top 2",
        "llama.expert_count": EXPERTS,
        "llama.expert_used_count": USED,
    }
    assert set(before) - set(after) == {"general.size_label"}
    assert after["tokenizer.ggml.tokens"] == tiny_gguf.TOKENS


def test_shapes_are_those_of_mixtral(mixture):
    shapes = {tensor.name: tensor.shape.tolist() for tensor in GGUFReader(mixture).tensors}
    assert shapes["blk.0.ffn_gate_exps.weight"] == [tiny_gguf.WIDTH, tiny_gguf.FEED_FORWARD, EXPERTS]
    assert shapes["blk.0.ffn_down_exps.weight"] == [tiny_gguf.FEED_FORWARD, tiny_gguf.WIDTH, EXPERTS]
    assert shapes["blk.0.ffn_gate_inp.weight"] == [tiny_gguf.WIDTH, EXPERTS]


def test_the_seed_decides(dense, tmp_path, mixture):
    again = upcycle(dense, tmp_path / "again.gguf", EXPERTS, USED, 7, quiet)
    other = upcycle(dense, tmp_path / "other.gguf", EXPERTS, USED, 8, quiet)
    assert again.read_bytes() == mixture.read_bytes()
    assert other.read_bytes() != mixture.read_bytes()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"architecture": "qwen2"}, "architecture llama, not qwen2"),
        ({"extra": {"llama.expert_count": 8}}, "mixture of experts already"),
        ({"extra": {"split.count": 2}}, "join the parts"),
    ],
)
def test_other_models_are_refused(tmp_path, options, words):
    source = tiny_gguf.write_model(tmp_path / "x.gguf", **options)
    with pytest.raises(GgufError, match=words):
        upcycle(source, tmp_path / "moe.gguf", EXPERTS, USED, 0, quiet)
    assert not (tmp_path / "moe.gguf").exists()


@pytest.mark.parametrize(("experts", "used"), [(4, 0), (4, 5)])
def test_impossible_numbers_are_refused(dense, tmp_path, experts, used):
    with pytest.raises(GgufError, match="choose 1 to 4"):
        upcycle(dense, tmp_path / "moe.gguf", experts, used, 0, quiet)


def test_the_program_tells_its_progress(dense, tmp_path, capsys):
    assert main([str(dense), str(tmp_path / "moe.gguf"), "--experts", "2", "--used", "1"]) == 0
    fractions = [progress.parse(line).fraction for line in capsys.readouterr().out.splitlines()]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert tiny_gguf.metadata(tmp_path / "moe.gguf")["llama.expert_count"] == 2


def test_the_program_refuses_in_one_line(mixture, tmp_path, capsys):
    assert main([str(mixture), str(tmp_path / "twice.gguf")]) == 1
    assert "mixture of experts already" in capsys.readouterr().err
