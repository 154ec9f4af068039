"""Artefacts: found only when whole."""

import hashlib

import msgspec
import pytest

from engines import artifact
from engines.artifact import Manifest
from engines.errors import ArtefactDamaged

MODEL = b"weights" * 10


def put(artefacts, digest="abc", *, model=MODEL, **changes):
    folder = artefacts / digest
    folder.mkdir(parents=True)
    (folder / "model.gguf").write_bytes(model)
    fields = {
        "digest": digest,
        "recipe": {"engine": "llamacpp", "source": "x.gguf"},
        "file": "model.gguf",
        "bytes": len(MODEL),
        "sha256": hashlib.sha256(MODEL).hexdigest(),
        "created": "2026-01-01T00:00:00+00:00",
        "seconds": 1.5,
        "tools": {"gguf": "0.19.0"},
    }
    manifest = Manifest(**(fields | changes))
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest))
    return manifest


def test_a_whole_artefact_is_found(tmp_path):
    manifest = put(tmp_path)
    found = artifact.find(tmp_path, "abc")
    assert found.manifest == manifest
    assert found.path.read_bytes() == MODEL
    assert found.digest == "abc"
    artifact.verify(found, checksum=True)


def test_none_is_found_where_none_is(tmp_path):
    assert artifact.find(tmp_path, "abc") is None
    assert artifact.find(tmp_path / "no such folder", "abc") is None
    assert artifact.every(tmp_path / "no such folder") == []


@pytest.mark.parametrize("harm", ["no manifest", "cut manifest", "no model", "short model", "other digest"])
def test_a_half_artefact_is_not_found(tmp_path, harm):
    put(tmp_path, **({"model": MODEL[:-1]} if harm == "short model" else {}))
    folder = tmp_path / "abc"
    if harm == "no manifest":
        (folder / "manifest.json").unlink()
    elif harm == "cut manifest":
        (folder / "manifest.json").write_text('{"digest": "ab')
    elif harm == "no model":
        (folder / "model.gguf").unlink()
    elif harm == "other digest":
        folder.rename(tmp_path / "def")
    assert artifact.find(tmp_path, "def" if harm == "other digest" else "abc") is None
    assert artifact.every(tmp_path) == []


def test_changed_bytes_show_in_the_checksum_only(tmp_path):
    put(tmp_path, model=MODEL[::-1])
    found = artifact.find(tmp_path, "abc")
    artifact.verify(found)
    with pytest.raises(ArtefactDamaged, match="sha256"):
        artifact.verify(found, checksum=True)


def test_a_model_that_is_gone_is_damage(tmp_path):
    put(tmp_path)
    found = artifact.find(tmp_path, "abc")
    found.path.unlink()
    with pytest.raises(ArtefactDamaged, match=r"model\.gguf: No such file"):
        artifact.verify(found)


def test_every_artefact_by_age(tmp_path):
    put(tmp_path, "new", created="2026-02-01T00:00:00+00:00")
    put(tmp_path, "old")
    put(tmp_path, "cut", model=b"")
    (tmp_path / "a file").write_text("")
    assert [one.digest for one in artifact.every(tmp_path)] == ["old", "new"]


def test_manifests_of_later_releases_are_read(tmp_path):
    put(tmp_path)
    path = tmp_path / "abc" / "manifest.json"
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | {"perplexity": 12.5}))
    assert artifact.find(tmp_path, "abc") is not None
