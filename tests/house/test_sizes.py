"""Files and functions stay small enough to be read in one go."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("backends", "classifier", "engines", "gateway", "telemetry")
FILES = sorted(path for part in PRODUCT for path in (ROOT / part).rglob("*.py"))
MAX_FILE = 400
MAX_FUNCTION = 60
MAX_SHARE_OVER_40 = 0.03


def functions(path):
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.end_lineno - node.lineno + 1


def test_there_is_something_to_measure():
    assert len(FILES) > 40


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_says_what_it_is_for_and_is_small(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_FILE
    assert ast.get_docstring(ast.parse(text)), "a module docstring says in one sentence what the file is for"
    too_long = [f"{name}: {lines} lines" for name, lines in functions(path) if lines > MAX_FUNCTION]
    assert not too_long


def test_few_functions_are_long():
    sizes = [lines for path in FILES for _, lines in functions(path)]
    assert sum(lines > 40 for lines in sizes) / len(sizes) <= MAX_SHARE_OVER_40


def test_nothing_is_unfinished_or_names_a_workplace():
    marks = ("TODO", "FIXME", "XXX", "raise NotImplementedError", "/work/", "../shared", "farm-")
    places = [*FILES, *ROOT.glob("*.md"), *ROOT.glob("*.toml"), *(ROOT / "docs").rglob("*.md"), ROOT / "Makefile"]
    found = [
        f"{path.relative_to(ROOT)}: {mark}"
        for path in places
        for mark in marks
        if path.exists() and mark in path.read_text()
    ]
    assert not found
