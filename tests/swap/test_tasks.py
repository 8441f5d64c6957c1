"""What a model is asked: hidden and following tokens, teacher forcing, sentences, and tables of pairs."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fenchel.errors import InputError, ModelError
from fenchel.io.batches import BEGINNING
from fenchel.io.documents import open_documents
from fenchel.io.windows import TokenWindows
from fenchel.run_options import PairColumns, SwapOptions
from fenchel.swap.observation import IGNORED, Step, observe
from fenchel.swap.reading import scored_pairs
from fenchel.swap.tasks import LanguageTask, SentenceTask, class_numbers
from tests.auditing.small_audits import some_texts
from tests.io.test_documents import table
from tests.io.test_windows import word_tokenizer
from tests.swap.small_swaps import FAMILIES, SCORED, language_model, tokenizer_of


def steps(
    family: str, *, batch_size: int = 3, seed: int = 0, probability: float = 0.15, **options: Any
) -> list[Step]:
    model = language_model(family)
    windows = TokenWindows(
        open_documents(options.pop("texts", some_texts())),
        options.pop("tokenizer", tokenizer_of(family)),
        config=model.config,
        batch_size=batch_size,
        **{"max_length": 12, **options},
    )
    asked = SwapOptions(mask_probability=probability, seed=seed)
    task = LanguageTask(windows, FAMILIES[family], asked)  # pyright: ignore[reportArgumentType]
    return list(task.steps(BEGINNING))


def rows(found: list[Step]) -> list[list[int]]:
    return [row[row != IGNORED].tolist() for step in found for row in step.labels]  # pyright: ignore[reportOptionalIterable]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_loss_is_the_models_own(family):
    model = language_model(family)
    for step in steps(family):
        assert step.labels is not None
        assert step.batch.counted is not None
        seen = observe(model, step)
        assert seen.losses is not None
        inputs, labels = step.batch.inputs, step.labels
        if family == "gpt2":
            # The model shifts by itself: it takes the tokens, and does not count those that are padding.
            labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, IGNORED)
        with torch.no_grad():
            expected = model(**inputs, labels=labels).loss
        assert float(seen.losses.sum() / (step.labels != IGNORED).sum()) == pytest.approx(
            float(expected), rel=1e-6
        )


def test_hidden_tokens_are_masked_counted_and_seeded():
    found = steps("bert")
    assert rows(found) == rows(steps("bert", batch_size=5))
    assert rows(found) != rows(steps("bert", seed=1))
    assert sum(map(len, rows(steps("bert", probability=0.6)))) > 2 * sum(map(len, rows(found)))
    for step in found:
        assert step.labels is not None
        hidden = step.labels != IGNORED
        assert bool((step.batch.inputs["input_ids"][hidden] == 1).all())
        assert bool((step.labels[hidden] > 3).all())
        assert bool(hidden.any(1).all())


def test_tokens_that_two_windows_share_are_predicted_once():
    text = [" ".join(f"w{k}" for k in range(30))]
    assert sum(map(len, rows(steps("gpt2", texts=text, stride=4)))) == 29


def test_a_target_is_what_the_decoder_predicts(tmp_path: Path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"text": "w1 w2", "de": "w5 w6 w7"}\n')
    model = language_model("t5")
    documents = open_documents(path, target_column="de")
    windows = TokenWindows(documents, tokenizer_of("t5"), config=model.config)
    (step,) = LanguageTask(windows, "seq2seq", SwapOptions()).steps(BEGINNING)
    assert rows([step]) == [[2, 9, 10, 11, 3]]
    with pytest.raises(InputError, match="a target column was given, but embedded sentences"):
        SentenceTask(documents, None, word_tokenizer(), None, SwapOptions())
    with pytest.raises(ModelError, match="has no mask token"):
        steps("bert", tokenizer=word_tokenizer())


def sentences(texts: Any = None, pairs: Any = None, **options: Any) -> SentenceTask:
    asked = SwapOptions.checked(**{"batch_size": 4, "sample_pairs": 100, **options})
    documents = None if texts is None else open_documents(texts)
    return SentenceTask(documents, pairs, word_tokenizer(), None, asked)


def test_sentences_are_embedded_once_the_shortest_first_cut_and_limited():
    task = sentences(["w1 w2 w3", "w1", "w1 w2 w3 ", "w4 w5"])
    assert task.count == 3
    assert [step.batch.documents for step in task.steps(BEGINNING)] == [(2, 3, 1)]
    assert task.ranked is not None
    assert task.ranked.tolist() == [[0, 1], [0, 2], [1, 2]]
    many = sentences(some_texts(10), batch_size=3)
    whole = list(many.steps(BEGINNING))
    assert whole[-1].batch.fraction == 1.0
    rest = list(many.steps(whole[1].batch.after))
    assert [step.batch.documents for step in rest] == [step.batch.documents for step in whole[2:]]
    assert 3 <= sentences(some_texts(10), max_tokens=90).count < many.count
    long = sentences(["w1 w2 w3 w4 w5", "w1", "w2"], max_length=5)
    assert long.description()["truncated"] == 1
    assert max(step.batch.inputs["input_ids"].shape[1] for step in long.steps(BEGINNING)) == 5
    scored = sentences(pairs=scored_pairs([("w1", "w2", 1), ("w2", "w3", 2), ("w1", "w3", 2.5)]))
    assert scored.count == 3
    assert scored.scored is not None
    assert scored.scored.tolist() == [[0, 1], [1, 2], [0, 2]]


def test_sentences_that_cannot_be_compared():
    for texts, options, message in (
        (["w1", "w2"], {}, "has 2 sentences that the tokenizer tells apart; a ranking"),
        (["w1", "w2", "w3"], {"max_length": 2}, "max length 2 leaves no room for text"),
        *(
            (None, {"pairs": scored_pairs([(one.format(k), other.format(k), k) for k in range(9)])}, "repeats one pair")
            for one, other in (("w1 w2", "w3"), ("w{}", "w{}"), ("x{}", "y{}"))
        ),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            sentences(texts, **options)


SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"


def test_pairs_of_every_format_are_the_same(tmp_path: Path):
    rows = [{"a": f'"w{k}', "b": f"w{k}, x", "score": k / 3} for k in range(5)]
    for form, ending in (("tsv", "txt"), ("csv", "csv"), ("jsonl", "jsonl"), ("parquet", "parquet")):
        (tmp_path / f"pairs.{ending}").write_bytes(table(form, rows))
        found = scored_pairs(tmp_path / f"pairs.{ending}", PairColumns("a", "b", "score"))
        pairs = [(*pair, score) for pair, score in zip(found.sentences, found.scores, strict=True)]
        assert pairs == [tuple(row.values()) for row in rows]


def test_true_and_false_are_the_classes_of_these_names_or_the_two_in_order():
    for names, expected in (({"bad": 0, "good": 1}, [0, 1, 0]), ({"TRUE": 0, "False": 1}, [1, 0, 1])):
        config = SimpleNamespace(label2id=names, num_labels=2)
        assert class_numbers({"a": "false", "b": "True", "c": "False"}, config).tolist() == expected
    with pytest.raises(InputError, match="'false', which is not a class"):
        class_numbers({"a": "false"}, SimpleNamespace(label2id={"true": 0, "other": 1}, num_labels=2))


def test_pairs_that_are_none(tmp_path: Path):
    path = tmp_path / "pairs.tsv"
    for content, message in (
        ("a\tb\n1\t2\n", "pairs.tsv has no column 'sentence_A'; it has 'a', 'b'.*--first-column"),
        ("sentence_A\tsentence_B\n1\t2\n", "pairs.tsv has no column 'relatedness_score'"),
        (SICK + "1\ta\tb\tmuch\tX\n", "row 1 of .* has the score 'much', which is not a number"),
        (SICK + "1\ta\t \t2\tX\n", "row 1 of .* has an empty sentence"),
        (SICK + "1\ta\tb\n", "row 1 of .* has 3 cells, but the first line names 5 columns"),
        (SICK + "1\ta\tb\t2\tX\n", "has 1 pair; a rank correlation needs at least 3"),
    ):
        path.write_text(content)
        with pytest.raises(InputError, match=message):
            scored_pairs(path, PairColumns())
    for pair in (("a", "b"), ("a", "", 1.0), ("a", 2, 1.0), ("a", "b", "much")):
        with pytest.raises(InputError, match="pair 13"):
            scored_pairs([*SCORED, pair])
