"""Requantising: the numbers stay close, everything that is not a number stays as it was."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType as G
from gguf import quants
from hypothesis import given, settings
from hypothesis import strategies as st

from engines import progress
from engines.errors import GgufError
from engines.llamacpp import ggml
from engines.llamacpp.gguf_file import Tensor
from engines.llamacpp.requantise import FILE_TYPES, FORMATS, main, requantise, target_format
from tests.support import tiny_gguf

# Largest error over the largest value of a block: half a step, or a whole one where the last step is clipped.
ERRORS = {"q4_0": 1 / 8, "q4_1": 1 / 15, "q8_0": 1 / 250, "f16": 1e-3}


def quiet(_fraction, _text): ...


def tensor(name, shape, kind):
    return Tensor(name, shape, kind, 0, ggml.nbytes(kind, shape))


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_values_stay_close_and_metadata_stays(tmp_path, name):
    source = tiny_gguf.write_model(tmp_path / "in.gguf")
    target = requantise(source, tmp_path / "out.gguf", name, quiet)
    before, after = tiny_gguf.values(source), tiny_gguf.values(target)
    assert list(after) == list(before)
    for key, old in before.items():
        assert np.abs(after[key] - old).max() <= ERRORS[name] * np.abs(old).max() + 1e-6, key
    expected = tiny_gguf.metadata(source) | {"general.file_type": FILE_TYPES[name], "general.quantization_version": 2}
    assert tiny_gguf.metadata(target) == expected


def test_matrices_take_the_format_and_the_rest_stays(tmp_path):
    source = tiny_gguf.write_model(tmp_path / "in.gguf")
    kinds = tiny_gguf.kinds(requantise(source, tmp_path / "out.gguf", "q4_0", quiet))
    assert kinds["blk.0.ffn_down.weight"] == G.Q4_0
    assert kinds["blk.1.attn_q.weight"] == G.Q4_0
    assert kinds["blk.0.attn_norm.weight"] == G.F32
    assert kinds["token_embd.weight"] == G.Q8_0  # tied: it is the output too
    assert tiny_gguf.raw(tmp_path / "out.gguf")["token_embd.weight"] == tiny_gguf.raw(source)["token_embd.weight"]


def test_the_bytes_are_gguf_pys_own(tmp_path):
    source = tiny_gguf.write_model(tmp_path / "in.gguf", kind=G.F16, embedding=G.F16)
    target = requantise(source, tmp_path / "out.gguf", "q4_0", quiet)
    for key, old in tiny_gguf.values(source).items():
        kind = tiny_gguf.kinds(target)[key]
        assert tiny_gguf.raw(target)[key] == quants.quantize(old, kind).tobytes(), key


def test_an_output_of_its_own_is_kept_fine_and_the_embedding_is_not(tmp_path):
    source = tiny_gguf.write_model(tmp_path / "in.gguf", kind=G.F16, embedding=G.F16, tied=False)
    kinds = tiny_gguf.kinds(requantise(source, tmp_path / "out.gguf", "q4_0", quiet))
    assert kinds["output.weight"] == G.Q8_0
    assert kinds["token_embd.weight"] == G.Q4_0


def test_the_same_source_makes_the_same_file(tmp_path):
    source = tiny_gguf.write_model(tmp_path / "in.gguf")
    first = requantise(source, tmp_path / "1.gguf", "q4_0", quiet).read_bytes()
    assert requantise(source, tmp_path / "2.gguf", "q4_0", quiet).read_bytes() == first


@pytest.mark.parametrize(
    ("one", "output", "expected"),
    [
        (tensor("blk.0.attn_q.weight", (64, 64), ggml.Q4_1), False, ggml.Q4_0),
        (tensor("blk.0.ffn_up_exps.weight", (64, 96, 4), ggml.Q4_1), False, ggml.Q4_0),
        (tensor("blk.0.attn_q.bias", (64,), ggml.F32), False, ggml.F32),
        (tensor("blk.0.ffn_gate_inp.weight", (64, 4), ggml.F32), False, ggml.F32),
        (tensor("blk.0.attn_k_norm.weight", (64, 2), ggml.F32), False, ggml.F32),
        (tensor("blk.0.odd.weight", (48, 4), ggml.F16), False, ggml.F16),  # no whole blocks of 32
        (tensor("output.weight", (64, 40), ggml.F16), True, ggml.Q8_0),
        (tensor("output.weight", (64, 40), ggml.Q4_1), True, ggml.Q4_1),  # more bits would bring nothing back
        (tensor("output.weight", (256, 40), int(G.Q6_K)), True, int(G.Q6_K)),
    ],
)
def test_which_tensor_gets_which_format(one, output, expected):
    assert target_format(one, ggml.Q4_0, output=output) == expected


def test_many_pieces_make_the_same_bytes(tmp_path, monkeypatch):
    source = tiny_gguf.write_model(tmp_path / "in.gguf")
    whole = requantise(source, tmp_path / "1.gguf", "q4_0", quiet).read_bytes()
    monkeypatch.setattr("engines.llamacpp.requantise._PIECE", 5 * tiny_gguf.WIDTH)
    assert requantise(source, tmp_path / "2.gguf", "q4_0", quiet).read_bytes() == whole


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 40), blocks=st.integers(1, 6), seed=st.integers(0, 99))
def test_long_rows_give_the_bytes_of_short_ones(rows, blocks, seed):
    values = np.random.default_rng(seed).normal(size=(rows, 32 * blocks)).astype(np.float32)
    old = quants.quantize(values, G.Q4_1)
    expected = quants.quantize(quants.dequantize(old, G.Q4_1), G.Q8_0).tobytes()
    assert ggml.convert(old.tobytes(), ggml.Q4_1, 32 * blocks, ggml.Q8_0) == expected


def test_a_format_that_gguf_py_cannot_handle_is_refused_by_name():
    with pytest.raises(GgufError, match="Q4_K"):
        ggml.to_bytes(np.zeros((1, 256), np.float32), int(G.Q4_K))
    with pytest.raises(GgufError, match="Q8_K"):
        ggml.to_floats(bytes(292), int(G.Q8_K), (1, 256))


def test_a_part_of_a_split_model_is_refused(tmp_path):
    source = tiny_gguf.write_model(tmp_path / "in.gguf", extra={"split.count": 3})
    with pytest.raises(GgufError, match="join the parts"):
        requantise(source, tmp_path / "out.gguf", "q4_0", quiet)


def test_the_program_tells_its_progress(tmp_path, capsys):
    source = tiny_gguf.write_model(tmp_path / "in.gguf")
    assert main([str(source), str(tmp_path / "out.gguf"), "--type", "q8_0"]) == 0
    seen = [progress.parse(line) for line in capsys.readouterr().out.splitlines()]
    fractions = [one.fraction for one in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert len(fractions) > 5


def test_the_program_says_what_is_wrong_in_one_line(tmp_path, capsys):
    assert main([str(tmp_path / "none.gguf"), str(tmp_path / "out.gguf"), "--type", "q4_0"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "none.gguf" in error
    assert len(error.splitlines()) == 1
