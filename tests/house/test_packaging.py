"""What is installed is locked, light, and what the project says it is."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NAME = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def locked(name):
    text = (ROOT / "requirements" / name).read_text()
    return {one.lower().replace("_", "-"): version for one, version in NAME.findall(text)}


def names(requirements):
    return {re.split(r"[\[<>=!~; ]", one)[0].lower().replace("_", "-") for one in requirements}


def test_the_extras():
    assert set(PROJECT["optional-dependencies"]) == {"local", "postgres", "redis", "triton", "kubernetes", "trt"}


@pytest.mark.parametrize("name", ["run.txt", "dev.txt"])
def test_every_locked_version_has_its_hashes(name):
    text = (ROOT / "requirements" / name).read_text()
    blocks = re.split(r"\n(?=\S)", text)
    pinned = [block for block in blocks if NAME.match(block)]
    assert len(pinned) > 60
    assert not [block for block in pinned if "--hash=sha256:" not in block]


def test_the_default_installation_has_what_it_needs_and_no_torch():
    run = locked("run.txt")
    assert names(PROJECT["dependencies"]) | names(PROJECT["optional-dependencies"]["local"]) <= set(run)
    assert not {"torch", "tensorrt-llm", "transformers", "llama-cpp-python"} & set(run)


def test_the_tests_installation_has_every_extra_but_trt_and_the_same_versions():
    run, dev = locked("run.txt"), locked("dev.txt")
    extras = PROJECT["optional-dependencies"]
    assert set().union(*(names(extras[one]) for one in extras if one != "trt")) <= set(dev)
    assert not {"torch", "tensorrt-llm"} & set(dev)
    assert {name: version for name, version in run.items() if dev.get(name, version) != version} == {}


def test_the_makefile_sets_itself_up():
    rules = (ROOT / "Makefile").read_text()
    assert re.search(r"^dev: install\b", rules, re.MULTILINE)
    assert re.search(r"^test: tools\b", rules, re.MULTILINE)
    assert re.search(r"^ci: check test-all\b", rules, re.MULTILINE)
    suites = {path.name for path in (ROOT / "tests").iterdir() if any(path.rglob("test_*.py"))}
    reached = {"unit", "contract", "house"} | set(re.findall(r"tests/(\w+)", rules))
    assert suites <= reached, "a suite that no command runs"
