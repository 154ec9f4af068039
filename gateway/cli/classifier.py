"""`turnout classifier`: train the classifier that routes requests, and evaluate it on labelled prompts."""

import json
import logging
import os
import sys
from collections.abc import Mapping, Sized
from pathlib import Path
from typing import Any

import click

from classifier.errors import ClassifierError

WORTH_PROCESSES = 2_000
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, path_type=Path)


@click.group
def command() -> None:
    """Train and evaluate the classifier that routes requests between small and large models.

    Example: turnout classifier evaluate --data my-prompts
    """


@command.command
@click.option("--data", required=True, type=FOLDER, help="Folder of labelled prompts (gzip JSON lines).")
@click.option("--output", required=True, type=FILE, help="Where the artefact is written (.npz).")
@click.option("--pairs", "pairs_file", type=FILE, help="Which models are compared; default: DATA/pairs.json.")
@click.option("--seed", default=0, show_default=True, help="The same data and seed give the same artefact.")
def train(data: Path, output: Path, pairs_file: Path | None, seed: int) -> None:
    """Fit the classifier on the pooled sets whose licence lets them train, and write it as plain arrays.

    Example: turnout classifier train --data my-prompts --output difficulty.npz
    """
    from classifier import publish, rows  # noqa: PLC0415 - scikit-learn is slow to import, and only needed here
    from classifier.train import Recipe  # noqa: PLC0415

    _log_to_stderr()
    with _told():
        pairs = rows.find_pairs(data, pairs_file)
        sets = rows.read_sets(data, pairs)
        manifest = publish.train(sets, pairs, Recipe(seed=seed), output, workers=_workers(sets))
    click.echo(f"{output}: version {manifest.version}, {output.stat().st_size / 1e6:.1f} MB")
    for trained in manifest.sets:
        click.echo(f"  {trained.name}: {trained.rows} rows, {trained.licence}")


@command.command
@click.option("--data", required=True, type=FOLDER, help="Folder of labelled prompts (gzip JSON lines).")
@click.option("--pairs", "pairs_file", type=FILE, help="Which models are compared; default: DATA/pairs.json.")
@click.option("--model", type=FILE, help="The artefact; default: the one that ships.")
@click.option("--cv", type=click.IntRange(min=2), help="Re-fit the recipe on DATA by this many folds instead.")
@click.option("--seed", default=0, show_default=True, help="For --cv and --bootstrap.")
@click.option("--bootstrap", default=0, help="Draws for 95 % intervals, such as 1000; 0: none.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def evaluate(
    data: Path,
    pairs_file: Path | None,
    model: Path | None,
    cv: int | None,
    seed: int,
    bootstrap: int,
    *,
    as_json: bool,
) -> None:
    """Measure the artefact that ships (or another, or the recipe by folds) on labelled prompts.

    Example: turnout classifier evaluate --data my-prompts --cv 5 --json
    """
    from classifier import artefact, rows  # noqa: PLC0415 - scikit-learn is slow to import, and only needed here
    from classifier import evaluate as evaluation  # noqa: PLC0415
    from classifier.train import Recipe  # noqa: PLC0415

    if model is not None and cv is not None:
        raise click.UsageError("--model and --cv exclude each other: --cv fits models of its own")
    _log_to_stderr()
    with _told():
        pairs = rows.find_pairs(data, pairs_file)
        sets = rows.read_sets(data, pairs)
        if not sets:
            files = ", ".join(paired.file for paired in pairs.sets.values()) or "none"
            click.echo(f"{data}: nothing to evaluate: no row has both scores. Files looked for: {files}", err=True)
        if cv is None:
            scored = evaluation.with_artefact(artefact.load(model), sets)
        else:
            scored = evaluation.with_folds(sets, pairs, cv, Recipe(seed=seed), workers=_workers(sets))
        report = evaluation.report(scored, pairs, evaluation.Bootstrap(bootstrap, seed))
    click.echo(json.dumps(report) if as_json else table(report))


class _told:  # noqa: N801 - reads as a word in `with _told():`
    """An error of ours becomes one line and exit status 1."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, ClassifierError):
            raise click.ClickException(str(error)) from error


def _workers(sets: Mapping[str, Sized]) -> int:
    """Processes to fit in: one a core, but one alone where starting more takes longer than the work."""
    return len(os.sched_getaffinity(0)) if sum(map(len, sets.values())) >= WORTH_PROCESSES else 1


def _log_to_stderr() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")


def table(report: dict[str, Any]) -> str:
    """The report for people: one line a set, the baselines beside the classifier."""
    head = f"{'':28} {'rows':>6} {'AUROC':>6} {'APGR':>6} {'CPT50':>6} {'CPT80':>6} {'ECE':>6} {'Brier':>6}   APGR of: "
    lines = [head + ", ".join(report["baselines"])]
    for name, block in [("pooled", report["pooled"]), *report["sets"].items()]:
        beside = [
            _cell((kind["pooled"] if name == "pooled" else kind["sets"][name])["apgr"], 3)
            for kind in report["baselines"].values()
        ]
        cells = [
            _cell(block[key], places)
            for key, places in (("auroc", 3), ("apgr", 3), ("cpt50", 1), ("cpt80", 1), ("ece", 3), ("brier", 3))
        ]
        seen = f"  ({block['seen_rows']} trained on, left out)" if block["seen_rows"] else ""
        lines.append(f"{name:28} {block['n']:6} {' '.join(cells)}   {' '.join(beside)}{seen}")
    return "\n".join(lines)


def _cell(value: float | None, places: int) -> str:
    return f"{'-':>6}" if value is None else f"{value:6.{places}f}"
