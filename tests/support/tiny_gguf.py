"""A model of a few kilobytes in the layout of architecture llama, written by gguf-py: what the programs work on."""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter, quants

WIDTH, FEED_FORWARD, VOCABULARY, LAYERS = 64, 96, 40, 2
TEMPLATE = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}"
TOKENS = [f"tök{index}" for index in range(VOCABULARY)]


def write_model(
    path: Path,
    *,
    kind: GGMLQuantizationType = GGMLQuantizationType.Q4_1,
    embedding: GGMLQuantizationType = GGMLQuantizationType.Q8_0,
    architecture: str = "llama",
    tied: bool = True,
    extra: dict[str, int] | None = None,
    alignment: int | None = None,
) -> Path:
    random = np.random.default_rng(1)
    writer = GGUFWriter(path, architecture)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    writer.add_name("Tiny")
    writer.add_size_label("0.1M")
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_rope_freq_base(100000.0)
    writer.add_file_type(3)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * VOCABULARY)
    writer.add_token_merges(["t ö", "tö k"])
    writer.add_add_bos_token(value=False)
    writer.add_chat_template(TEMPLATE)
    for key, value in (extra or {}).items():
        writer.add_uint32(key, value)

    def matrix(name: str, rows: int, width: int, as_kind: GGMLQuantizationType) -> None:
        values = random.normal(0, 0.1, (rows, width)).astype(np.float32)
        writer.add_tensor(name, quants.quantize(values, as_kind), raw_dtype=as_kind)

    matrix("token_embd.weight", VOCABULARY, WIDTH, embedding)
    for layer in range(LAYERS):
        writer.add_tensor(f"blk.{layer}.attn_norm.weight", np.ones(WIDTH, np.float32))
        matrix(f"blk.{layer}.attn_q.weight", WIDTH, WIDTH, kind)
        matrix(f"blk.{layer}.ffn_gate.weight", FEED_FORWARD, WIDTH, kind)
        matrix(f"blk.{layer}.ffn_up.weight", FEED_FORWARD, WIDTH, kind)
        matrix(f"blk.{layer}.ffn_down.weight", WIDTH, FEED_FORWARD, kind)
    if not tied:
        matrix("output.weight", VOCABULARY, WIDTH, embedding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def metadata(path: Path) -> dict[str, object]:
    """Every key and value, as gguf-py's own reader sees them."""
    fields = GGUFReader(path).fields
    return {name: field.contents() for name, field in fields.items() if not name.startswith("GGUF.")}


def kinds(path: Path) -> dict[str, GGMLQuantizationType]:
    return {tensor.name: tensor.tensor_type for tensor in GGUFReader(path).tensors}


def values(path: Path) -> dict[str, np.ndarray]:
    """Every tensor as 32-bit floats, as gguf-py's own reader sees them."""
    return {
        tensor.name: quants.dequantize(np.asarray(tensor.data), tensor.tensor_type)
        for tensor in GGUFReader(path).tensors
    }


def raw(path: Path) -> dict[str, bytes]:
    return {tensor.name: np.asarray(tensor.data).tobytes() for tensor in GGUFReader(path).tensors}
