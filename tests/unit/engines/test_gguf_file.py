"""The GGUF container against gguf-py, which writes and reads the other side."""

import pytest
from gguf import GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engines.errors import GgufError
from engines.llamacpp import ggml
from engines.llamacpp.gguf_file import (
    Kind,
    NewTensor,
    Value,
    read_header,
    read_rows,
    text_value,
    uint32_value,
    write,
)
from tests.support import tiny_gguf


@pytest.fixture
def model(tmp_path):
    return tiny_gguf.write_model(tmp_path / "tiny.gguf")


def copy(source, target):
    header = read_header(source)
    with source.open("rb") as file:
        tensors = [
            NewTensor(
                tensor.name, tensor.shape, tensor.kind, lambda tensor=tensor: [read_rows(file, tensor, 0, tensor.rows)]
            )
            for tensor in header.tensors
        ]
        write(target, header.metadata, tensors)
    return target


def test_a_header_holds_what_gguf_py_wrote(model):
    header = read_header(model)
    assert header.text("general.architecture") == "llama"
    assert header.text("tokenizer.chat_template") == tiny_gguf.TEMPLATE
    assert header.number("llama.embedding_length") == tiny_gguf.WIDTH
    assert header.number("llama.rope.freq_base") == 100000.0
    assert header.number("tokenizer.ggml.add_bos_token") is False
    assert header.number("no.such.key") is None
    assert header.text("llama.embedding_length") is None
    assert header.number("general.name") is None


def test_tensors_lie_where_gguf_py_put_them(model):
    expected = tiny_gguf.raw(model)
    with model.open("rb") as file:
        found = {tensor.name: read_rows(file, tensor, 0, tensor.rows) for tensor in read_header(model).tensors}
    assert found == expected


def test_rows_are_read_in_pieces(model):
    tensor = next(tensor for tensor in read_header(model).tensors if tensor.name == "blk.0.ffn_gate.weight")
    assert (tensor.width, tensor.rows) == (tiny_gguf.WIDTH, tiny_gguf.FEED_FORWARD)
    with model.open("rb") as file:
        pieces = [read_rows(file, tensor, first, 32) for first in range(0, tensor.rows, 32)]
    assert b"".join(pieces) == tiny_gguf.raw(model)[tensor.name]


@pytest.mark.parametrize("alignment", [None, 64, 256])
def test_a_copy_is_equal_byte_by_byte(tmp_path, alignment):
    model = tiny_gguf.write_model(tmp_path / "tiny.gguf", alignment=alignment)
    assert copy(model, tmp_path / "copy.gguf").read_bytes() == model.read_bytes()


def test_gguf_py_reads_what_we_wrote(tmp_path, model):
    copied = copy(model, tmp_path / "copy.gguf")
    assert tiny_gguf.metadata(copied) == tiny_gguf.metadata(model)
    assert tiny_gguf.raw(copied) == tiny_gguf.raw(model)


def test_progress_ends_at_all_bytes(tmp_path):
    seen = []
    tensors = [NewTensor(name, (4, 2), ggml.F32, lambda: [bytes(32)]) for name in "ab"]
    write(tmp_path / "x.gguf", {}, tensors, seen.append)
    assert seen == [32, 64]


def test_a_tensor_of_the_wrong_length_is_refused(tmp_path):
    with pytest.raises(GgufError, match="a: 16 bytes instead of 32"):
        write(tmp_path / "x.gguf", {}, [NewTensor("a", (4, 2), ggml.F32, lambda: [bytes(16)])])


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 0.999))
def test_no_cut_file_is_taken_for_a_whole_one(tmp_path, model, share):
    end = max(tensor.offset + tensor.bytes for tensor in read_header(model).tensors)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[: int(end * share)])
    with pytest.raises(GgufError):
        read_header(cut)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cannot be read"),
        (b"GGML" + bytes(60), "not a GGUF file"),
        (b"GGUF\x01\x00\x00\x00" + bytes(60), "version 1"),
        (b"GGUF\x00\x00\x00\x03" + bytes(60), "version 50331648"),  # the other byte order
        (b"GGUF\x03\x00\x00\x00" + (2**60).to_bytes(8, "little") + bytes(8), "damaged or cut short"),
    ],
)
def test_what_is_no_gguf_file_is_refused_with_its_name(tmp_path, data, words):
    path = tmp_path / "odd.gguf"
    path.write_bytes(data)
    with pytest.raises(GgufError, match=words) as caught:
        read_header(path)
    assert "odd.gguf" in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(GgufError, match="No such file"):
        read_header(tmp_path / "none.gguf")


def test_an_unknown_tensor_type_is_refused(tmp_path, model):
    data = bytearray(model.read_bytes())
    name = b"token_embd.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8  # after the dimensions
    data[at : at + 4] = (9999).to_bytes(4, "little")
    model.write_bytes(data)
    with pytest.raises(GgufError, match="9999"):
        read_header(model)


def test_lists_of_lists_are_stepped_over(tmp_path):
    inner = (4).to_bytes(4, "little") + (2).to_bytes(8, "little") + bytes(8)  # two UINT32
    nested = Value(Kind.ARRAY, (9).to_bytes(4, "little") + (2).to_bytes(8, "little") + inner * 2)
    path = tmp_path / "nested.gguf"
    write(path, {"odd": nested, "after": text_value("here")}, [])
    assert read_header(path).text("after") == "here"
    assert read_header(path).metadata["odd"] == nested


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(entries=st.dictionaries(st.text(min_size=1), st.text() | st.integers(0, 2**32 - 1)))
def test_metadata_come_back_as_they_went(tmp_path, entries):
    path = tmp_path / "x.gguf"
    entries.pop("general.alignment", None)
    write(path, {key: uint32_value(v) if isinstance(v, int) else text_value(v) for key, v in entries.items()}, [])
    header = read_header(path)
    assert {
        key: value.text if value.kind == Kind.STRING else value.number for key, value in header.metadata.items()
    } == entries


def test_sizes_are_those_of_gguf_py():
    assert ggml.nbytes(ggml.Q4_0, (64, 3)) == 3 * 2 * 18
    assert ggml.nbytes(ggml.F16, (5, 2, 2)) == 40
    assert (ggml.bits(ggml.Q4_0), ggml.bits(ggml.Q8_0), ggml.bits(ggml.F32)) == (4.5, 8.5, 32)
    assert ggml.name(int(GGMLQuantizationType.Q6_K)) == "Q6_K"
    with pytest.raises(GgufError, match="blocks of 32"):
        ggml.nbytes(ggml.Q4_0, (33, 2))
