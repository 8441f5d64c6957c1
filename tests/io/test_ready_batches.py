"""Batches of ready-made inputs that say more than that: tokens that count, numbers of documents, texts of tokens."""

from typing import Any

import pytest
import torch

from fenchel.auditing.example_search import WindowText
from fenchel.errors import InputError
from fenchel.io.batches import PADDING, TokenTexts
from fenchel.io.runs import Shard
from fenchel.io.windows import ReadyBatches
from tests.io.test_windows import text_of

TEXTS = [["[CLS]", "un", "##told", "tales"], ["[CLS]", "tales"]]


def only(inputs: Any) -> Any:
    (batch,) = ReadyBatches([inputs]).batches()
    return batch


def with_known(**known: Any) -> list[Any]:
    return [{"inputs": {"x": torch.zeros(2, 4, 8)}, **known}]


def test_plain_inputs_say_nothing_of_their_tokens_and_are_read_from_anywhere() -> None:
    images = [{"pixel_values": torch.rand(count, 3, 4, 4)} for count in (2, 1)]
    batches = list(ReadyBatches(images).batches())
    assert torch.equal(batches[1].inputs["pixel_values"], images[1]["pixel_values"])
    for index, (batch, documents) in enumerate(zip(batches, [(1, 2), (3,)], strict=True)):
        assert (batch.documents, batch.windows) == (documents, (1,) * len(documents))
        assert (batch.counted, batch.tokens, batch.loss) == (None, len(documents), None)
        assert (batch.tokens_of(decoder=False), batch.has_decoder) == (None, False)
        assert len(list(ReadyBatches(images).batches(batch.after))) == 1 - index
    told = WindowText(batches[0], 0, decoder=False, length=4)
    assert (told.token(3), told.pieces, told.special) == ("position 4", (), [False] * 4)
    assert [batch.documents for batch in ReadyBatches(images, shard=Shard(1, 2)).batches()] == [(3,)]
    many = ReadyBatches([{"x": torch.zeros(2, 4)}] * 100, max_tokens=4)
    assert [batch.fraction for batch in many.batches()] == [0.5, 1.0]
    assert only({"inputs": torch.zeros(2, 4, 8)}).inputs.keys() == {"inputs"}
    no_image = {"pixel_values": torch.zeros(3, 16, 768), "spatial_shapes": torch.zeros(3, 2)}
    assert only(no_image).documents == (1, 2, 3)


def test_inputs_with_a_mask_count_what_it_says_and_the_decoders_ids_are_read() -> None:
    inputs = {
        "input_ids": torch.tensor([[5, 6, 0]]),
        "attention_mask": torch.tensor([[1, 1, 0]]),
        "decoder_input_ids": torch.tensor([[5, 6]]),
    }
    batch = only(inputs)
    assert batch.counted.tolist() == [[True, True, False]]
    assert (batch.counted_decoder.tolist(), batch.tokens) == ([[True, True]], 2)
    assert (text_of(batch).token(1), text_of(batch).pieces) == ("6", (" 5", " 6"))
    batch = only({"inputs": inputs, "tokens": [["a", "b"]]})
    assert (text_of(batch).pieces, text_of(batch, decoder=True).pieces) == (("a", " b"), ("5", " 6"))


def test_texts_of_tokens_are_read_as_words_and_pieces() -> None:
    batch = only(*with_known(tokens=TEXTS))
    assert batch.counted.tolist() == [[True] * 4, [True, True, False, False]]
    assert batch.tokens == 6
    assert text_of(batch).pieces == ("[CLS]", " un", "told", " tales")
    assert text_of(batch, 1).pieces == ("[CLS]", " tales")
    assert text_of(batch).special == [True, False, False, False]
    assert list(map(text_of(batch).token, range(4))) == TEXTS[0]
    assert WindowText(batch, 0, decoder=False, length=3).pieces == ()
    assert not batch.has_decoder
    for space in " ▁Ġ":  # with which words may begin
        words = [["<s>", f"{space}un", "told", f"{space}tales"], ["<s>", f"{space}tales"]]
        spaced = only(*with_known(tokens=words))
        assert text_of(spaced).pieces == ("<s>", " un", "told", " tales")
        assert text_of(spaced, 1).special == [True, False]
    one, other = TokenTexts(), TokenTexts()  # whose numbers depend on the texts alone
    other.ids([["first", "of", "all"]], 3)
    ids = one.ids(TEXTS, 4)
    assert torch.equal(ids, other.ids(TEXTS, 4))
    assert ids[1].tolist()[2:] == [PADDING, PADDING]


def test_what_was_said_of_rows_and_tokens_is_taken() -> None:
    counted, counted_decoder = torch.tensor([[True, False] * 2] * 2), torch.ones(2, 3, dtype=torch.bool)
    known: dict[str, Any] = {"counted": counted, "counted_decoder": counted_decoder, "windows": (1, 2)}
    measures: dict[str, Any] = {"loss": lambda output: output, "score": lambda output: -output}
    known |= {"documents": [7, 7], "tokens": TEXTS, "tokens_decoder": [["a"], ["b", "c"]]}
    batch = only(*with_known(**known, **measures))
    assert torch.equal(batch.counted, counted)
    assert (batch.documents, batch.windows, batch.tokens) == ((7, 7), (1, 2), 4)
    assert (batch.after.document, batch.after.documents, batch.after.tokens) == (1, 1, 4)
    assert batch.has_decoder
    assert WindowText(batch, 1, decoder=True, length=3).pieces == ("b", " c")
    assert (batch.loss, batch.score) == (measures["loss"], measures["score"])
    parts = batch.of_sequences(4)
    assert parts.tokens_of(decoder=False) is None


def test_what_cannot_be_a_batch() -> None:
    inputs: Any
    for inputs, message in (
        (with_known(token=TEXTS), "batch 1 has 'token'; expected names among inputs, counted"),
        (with_known(counted=torch.ones(2, 4)), r"counted \(2, 4\) of torch.float32; expected a tensor \(2"),
        (with_known(counted_decoder=[[True]]), r"counted_decoder \[\[True\]\]; expected a tensor"),
        (with_known(tokens=[["a"]]), r"tokens \[\['a'\]\]; expected a list of .* for each of 2 rows"),
        (with_known(tokens=[["a"], [5]]), r"tokens a row \[5\]"),
        (with_known(tokens="ab"), "tokens 'ab'; expected a list"),
        (with_known(tokens=TEXTS, counted=torch.ones(2, 3) > 0), "a row of 4 tokens; expected at"),
        (with_known(documents=[1]), r"documents \[1\]; expected 2 whole numbers from 1"),
        (with_known(documents=[0, 1]), "documents .*from 1"),
        (with_known(windows=[True, 1]), "windows .*from 1"),
        (with_known(loss=5), "loss 5; expected a function"),
        ([], "yielded no model inputs"),
        (["text"], "model input 1 is 'text'; expected a mapping"),
        ([{}], r"model input 1 is \{\}; expected a mapping"),
        ([torch.tensor([[1, 2]])], "model input 1 is a Tensor; expected a mapping"),
        ([{"a": [1, 2]}], r"model input 1 is \{'a': \[1, 2\]\}; expected a mapping of the names"),
        ([{"a": torch.ones(2, 1), "b": torch.ones(3, 1)}], r"different batch sizes, \{'a': 2, 'b': 3\}"),
        ([{"pixel_values": torch.zeros(3, 16, 768)}], "no batch dimension"),
    ):
        with pytest.raises(InputError, match=message):
            list(ReadyBatches(inputs).batches())


def test_the_digest_is_of_all_that_is_given() -> None:
    counted = torch.ones(2, 4, dtype=torch.bool)
    known: list[dict[str, Any]] = [{}, {"counted": counted}, {"counted": ~counted}, {"documents": [1, 2]}]
    known += [{"documents": [2, 1]}, {"tokens": TEXTS}, {"tokens": [["a"], ["b"]]}]
    some, again = ([ReadyBatches(with_known(**one)).text_sha256 for one in known] for _ in range(2))
    assert len({*some}) == len(some)
    assert again == some
    assert ReadyBatches([{"x": torch.zeros(2, 4, 8)}]).text_sha256 == some[0]
