"""The artefact file: what was written is read again, and anything else is refused with the reason."""

import struct
import zipfile

import msgspec
import numpy as np
import pytest

from classifier import artefact, features
from classifier.errors import ArtefactUnreadable
from classifier.features import HAND, read
from classifier.model import Forest, Line, Model, Vocabulary
from classifier.trees import Ensemble, Split, Tree, forest

STUMP = Tree((Split(2, 10.0, 0, 1),), (0.25, 0.75))


def model():
    vocabulary = Vocabulary(
        {b"cat": 0, "é".encode(): 1}, np.array([1.0, 2.0]), np.array([[0.1, 0.2], [0.3, 0.4]], dtype=np.float32)
    )
    return Model(vocabulary, forest([Ensemble(0.1, (STUMP,)), Ensemble(0.0)]), Line(1.5, 0.1), Line(0.5, 0.0))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "model.npz"
    artefact.write(path, model(), artefact.Manifest(version="", prompts=("ab" * 32,), metrics={"auroc": 0.5}))
    return path


def rewrite(path, **changed):
    with np.load(path) as held:
        arrays = {name: held[name] for name in held.files}
    manifest = msgspec.json.decode(arrays["manifest"].tobytes())
    manifest.update({key: value for key, value in changed.items() if key not in arrays})
    arrays.update({key: value for key, value in changed.items() if key in arrays})
    arrays["manifest"] = np.frombuffer(msgspec.json.encode(manifest), dtype=np.uint8)
    np.savez(path, **arrays)


def test_what_was_written_is_read(file):
    held = artefact.load(file)
    for text in ("cat é", "", "a much longer text about a cat"):
        assert held.model.probabilities(read(text)) == model().probabilities(read(text))
    assert held.manifest.prompts == ("ab" * 32,)
    assert held.manifest.hand == HAND
    assert held.manifest.metrics == {"auroc": 0.5}
    assert held.manifest.version.startswith("1.")


def test_the_version_names_the_model(file, tmp_path):
    other = msgspec.structs.replace(model(), forest=forest([Ensemble(0.2), Ensemble(0.0)]))
    written = artefact.write(tmp_path / "b.npz", other, artefact.Manifest(version=""))
    same = artefact.write(tmp_path / "c.npz", model(), artefact.Manifest(version=""))
    assert written.version != artefact.load(file).manifest.version == same.version


def test_the_same_model_is_the_same_file(file, tmp_path):
    again = tmp_path / "again.npz"
    artefact.write(again, model(), artefact.Manifest(version="", prompts=("ab" * 32,), metrics={"auroc": 0.5}))
    assert again.read_bytes() == file.read_bytes()


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ArtefactUnreadable, match=r"gone\.npz: No such file"):
        artefact.load(tmp_path / "gone.npz")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(file, share):
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ArtefactUnreadable, match="cut short or not a classifier artefact"):
        artefact.load(file)


def test_a_flipped_byte_is_noticed(file):
    with zipfile.ZipFile(file) as packed:
        member = packed.getinfo("values.npy")
    whole = bytearray(file.read_bytes())
    name, extra = struct.unpack_from("<HH", whole, member.header_offset + 26)
    whole[member.header_offset + 30 + name + extra + member.compress_size // 2] ^= 0xFF
    file.write_bytes(bytes(whole))
    with pytest.raises(ArtefactUnreadable, match="cut short or not a classifier artefact"):
        artefact.load(file)


def test_changed_arrays_are_noticed(file):
    rewrite(file, base=np.array([9.0, 9.0]))
    with pytest.raises(ArtefactUnreadable, match="checksum"):
        artefact.load(file)


def test_a_newer_format_says_so(file):
    rewrite(file, format=artefact.FORMAT + 1, unheard_of={"a": 1})
    with pytest.raises(ArtefactUnreadable, match="made by a newer Turnout"):
        artefact.load(file)


def test_newer_features_say_so(file):
    rewrite(file, features=features.VERSION + 1)
    with pytest.raises(ArtefactUnreadable, match="made by a newer Turnout"):
        artefact.load(file)


def test_older_features_say_so(file):
    rewrite(file, features=features.VERSION - 1)
    with pytest.raises(ArtefactUnreadable, match="made by an older Turnout"):
        artefact.load(file)


def test_another_kind_says_so(file):
    rewrite(file, kind="weights")
    with pytest.raises(ArtefactUnreadable, match="another kind: 'weights'"):
        artefact.load(file)


def test_foreign_files_are_refused(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, a=np.zeros(3))
    with pytest.raises(ArtefactUnreadable, match="no manifest"):
        artefact.load(path)
    path.write_text("hello")
    with pytest.raises(ArtefactUnreadable, match="not a classifier artefact"):
        artefact.load(path)


def test_pickled_arrays_are_never_opened(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, manifest=np.array([{"kind": artefact.KIND}], dtype=object))
    with pytest.raises(ArtefactUnreadable, match="not a classifier artefact"):
        artefact.load(path)


def test_an_array_that_lacks_is_refused(tmp_path):
    path = tmp_path / "x.npz"
    empty = artefact.Manifest(version="", arrays=artefact._sha({}))
    np.savez(path, manifest=np.frombuffer(msgspec.json.encode(empty), dtype=np.uint8))
    with pytest.raises(ArtefactUnreadable):
        artefact.load(path)


def test_an_empty_vocabulary_is_kept(tmp_path):
    bare = Model(
        Vocabulary({}, np.zeros(0), np.zeros((0, 0), dtype=np.float32)),
        Forest(**{name: getattr(model().forest, name) for name in ("feature", "threshold", "keeps", "values", "base")}),
    )
    artefact.write(tmp_path / "x.npz", bare, artefact.Manifest(version=""))
    assert artefact.load(tmp_path / "x.npz").model.probabilities(read("a")) == bare.probabilities(read("a"))
