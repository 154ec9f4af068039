"""What an engine build is made from, and what it will do. A recipe is data: hash it, store it, show it, replay it."""

import hashlib
from typing import Any

import msgspec


class Recipe(msgspec.Struct, frozen=True, kw_only=True, tag_field="engine", forbid_unknown_fields=True):
    """The part every engine shares."""

    source: str  # where the weights come from: a path, or the name of a known source

    @property
    def digest(self) -> str:
        """Same recipe, same digest: the artefact's name and the lock around its build.

        What has its default does not count, so that a field added later throws no artefact away.
        """
        defaults = {field.name: field.default for field in msgspec.structs.fields(self)}
        tree: dict[str, Any] = msgspec.to_builtins(self)
        said = {name: value for name, value in tree.items() if name not in defaults or value != defaults[name]}
        return hashlib.sha256(msgspec.json.encode(said, order="sorted")).hexdigest()[:16]


class Command(msgspec.Struct, frozen=True):
    """One program to run, as data: printable, comparable, never a shell string."""

    name: str
    argv: tuple[str, ...]


class BuildPlan(msgspec.Struct, frozen=True):
    """Everything a build will do, decided before anything runs. Paths in argv are absolute."""

    digest: str
    commands: tuple[Command, ...]  # run in order; each prints `progress 0.42 text` lines
    output: str  # name of the file or folder the last command makes, inside the staging folder
    source: str = ""  # absolute path of the weights it reads; their checksum goes into the manifest
    disk: int = 0  # bytes that staging and fetching may take at most, 0 if unknown
    licence: str | None = None  # of the weights, as an SPDX name, where it is known beforehand
    tools: tuple[str, ...] = ()  # distributions that do the work; their versions go into the manifest


class ServeOptions(msgspec.Struct, frozen=True):
    """How a replica is to be started."""

    name: str  # the model name it answers to
    model: str  # absolute path of the artefact's file or folder
    slots: int = 4
    context: int = 8192
    threads: int = 1
    embeddings: bool = False
    drain: float = 10.0
