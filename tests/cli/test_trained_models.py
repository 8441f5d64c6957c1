"""``fenchel audit RUN`` and ``fenchel swap RUN`` of every model of text and captions."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fenchel.answering import seen_attention
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.trained_examples import TrainedExamples
from fenchel.swap import SwapReport
from fenchel.train import LoopOptions, load_model, train
from tests.cli.conftest import Command
from tests.data.test_labelled_texts import SICK_HEADER
from tests.data.test_parallel import written
from tests.train.captions.small_captions import options as caption_options
from tests.train.captions.small_captions import write_coco_mini
from tests.train.cloze.small_blanks import blanks_options
from tests.train.reading.small_readings import pair_options, pairs, read_options
from tests.train.text.small_texts import write_trec
from tests.train.translation.small_pairs import pairs as translations
from tests.train.translation.small_pairs import translation_options

Made = Callable[[Path], LoopOptions]
Count = Callable[[Mapping[str, torch.Tensor]], int]


@dataclass(frozen=True)
class Kind:
    """A model, and how many queries its layers are asked of some inputs."""

    options: Made
    real: tuple[Count, ...]


def passages(folder: Path) -> Path:
    folder.mkdir()
    drawn = random.Random(0)  # noqa: S311 - nothing secret
    words = ("the", "a", "dog", "cat", "barks", "purrs", "here", "now")
    lines = []
    for number in range(30):
        lines += ["", f" = Title {number} = ", ""]
        lines += [" ".join((*drawn.choices(words, k=9), ".")) for _ in range(3)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    return folder


def blanks(**changes: Any) -> Made:
    return lambda place: blanks_options(data=str(passages(place / "data")), **changes)


def captions(**changes: Any) -> Made:
    return lambda place: caption_options(data=str(write_coco_mini(place / "data")), **changes)


def multi30k(folder: Path) -> Path:
    splits = {"train": (60, 0), "val": (9, 1), "test_2016_flickr": (9, 2)}
    made = {name: translations(size, seed=seed) for name, (size, seed) in splits.items()}
    return written(
        folder, {name: list(zip(one.first, one.second, strict=True)) for name, one in made.items()}
    )


def translation(**changes: Any) -> Made:
    return lambda place: translation_options(data=str(multi30k(place / "data")), **changes)


def sick(folder: Path) -> Path:
    folder.mkdir()
    files = {"SICK_train.txt": (60, 0), "SICK_trial.txt": (9, 2), "SICK_test_annotated.txt": (9, 1)}
    for file, (size, seed) in files.items():
        one = pairs(size, seed=seed)
        assert one.relatedness is not None
        columns = (
            one.premises,
            one.hypotheses,
            one.relatedness,
            [one.class_names[label] for label in one.labels],
        )
        rows = ["\t".join(map(str, row)) for row in zip(range(len(one)), *columns, strict=True)]
        (folder / file).write_text(SICK_HEADER + "\n".join(rows).replace("entailment", "ENTAILMENT") + "\n")
    return folder


def sentences(**changes: Any) -> Made:
    return lambda place: read_options(data=str(write_trec(place / "data")), **changes)


def of_pairs(**changes: Any) -> Made:
    return lambda place: pair_options(data=str(sick(place / "data")), **changes)


ONE_A_ROW: tuple[Count] = (lambda inputs: len(inputs["words"]),)


def words(name: str) -> tuple[Count]:
    """How many numbers of words are none of padding."""
    return (lambda inputs: int((inputs[name] != 0).sum()),)


KINDS = {
    "translator": Kind(translation(), words("target")),
    "translator bahdanau": Kind(translation(query="bahdanau", preference="context"), words("target")),
    "translator luong exact": Kind(
        translation(query="luong", estimator="exact", preference="gaussian"), words("target")
    ),
    "classifier": Kind(sentences(), ONE_A_ROW),
    "classifier exact": Kind(sentences(estimator="exact", preference="context"), ONE_A_ROW),
    "pairs": Kind(of_pairs(), (*words("premises"), *words("hypotheses"))),
    "cloze": Kind(blanks(), words("numbers")),
    "cloze nsp": Kind(blanks(objective="mlm+nsp", last="standard"), words("numbers")),
    "cloze exact": Kind(blanks(estimator="exact"), words("numbers")),
    "captioner": Kind(captions(), words("words")),
    "captioner exact": Kind(captions(estimator="exact", preference="context"), words("words")),
    "captioner hard": Kind(captions(attention="hard"), words("words")),
}


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Kind]:
    place, kind = tmp_path_factory.mktemp("made"), KINDS[request.param]
    train(kind.options(place), place / "run", device="cpu")
    return place / "run", kind


def test_an_audit_counts_real_queries_and_measures_the_problems_of_the_model(
    command: Command, made: tuple[Path, Kind], tmp_path: Path
) -> None:
    run, kind = made
    done = command("audit", run, "--out", tmp_path / "audit", "--test-examples", "3", "--baseline", "none")
    assert (done.code, done.err) == (0, "")
    report = AuditReport.load(tmp_path / "audit")
    batches = list(TrainedExamples(run, 3).batches())
    assert sum(len(batch.documents) for batch in batches) == 3
    real = [sum(count(batch.inputs) for batch in batches) for count in kind.real]
    assert {head["queries"] for head in report.heads} == set(real)
    # The last attention of a model, query by query, by the problem itself.
    model, moved = load_model(run), []
    for batch in batches:
        with torch.no_grad(), seen_attention(model) as seen:
            model(**batch.inputs)
        call = seen[-1].call
        padding = call.query_padding
        if padding is None and call.asks_itself:
            padding = call.key_padding
        for row in range(len(batch.documents)):
            words = call.problem.evidence.shape[2]
            queries = words if padding is None else int((~padding[row]).sum())
            keys = [str(key) for key in range(call.problem.templates.shape[2])]
            one = seen[-1].maps("t", ["q"] * queries, keys, row=row)[-1]
            moved += one.moved.tolist()
    assert report.heads[-1]["total_variation_mean"] == pytest.approx(sum(moved) / len(moved), abs=2e-4)


def test_a_swap_measures_what_the_task_judges(
    command: Command, made: tuple[Path, Kind], tmp_path: Path
) -> None:
    run, _ = made
    line = ("--test-examples", "4", "--alphas", "0.5,1.5", "--bootstrap", "100", "--estimators", "exact")
    done = command("swap", run, "--out", tmp_path / "swap", *line)
    assert (done.code, done.err) == (0, "")
    report, examples = SwapReport.load(tmp_path / "swap"), TrainedExamples(run, 4)
    trained_with = getattr(TrainedExamples(run).task.options, "estimator", None) or "first_order"
    own = report.arm("model" if trained_with == "first_order" else trained_with)
    model, loss, score = load_model(run), [], []
    for batch in examples.batches():
        with torch.no_grad():
            judged = examples.task.judged(model(**batch.inputs), batch.own)
        loss += judged["loss"].tolist()
        score += judged["score"].tolist()
    assert own["loss"] == pytest.approx(sum(loss) / 4, rel=1e-4)
    assert own["score"] == pytest.approx(sum(score) / 4, rel=1e-4)
    assert report.arm("exact")["hidden_change"] >= 0


def test_what_is_judged_is_what_is_measured(made: tuple[Path, Kind]) -> None:
    run, _ = made
    examples = TrainedExamples(run)
    batch = next(examples.batches())
    model = load_model(run)
    with torch.no_grad():
        predicted = examples.task.predicted(model, batch.own)
        whole = examples.task.judged(model(**batch.inputs), batch.own)
        own = examples.task.judged(predicted, batch.own)
    assert own.keys() == whole.keys() == examples.task.judges.keys()
    for name, values in own.items():
        torch.testing.assert_close(values, whole[name])
        assert values.shape == (batch.own.count,)
