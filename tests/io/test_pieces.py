"""What every token adds to the text: spaces before words, none inside, characters of several tokens once."""

from typing import Any

import pytest

from fenchel.io.tokens import text_pieces
from tests.io.test_windows import word_tokenizer


def wordpiece_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["[UNK]", "walk", "##ing", "home", ".", "not"]
    tokenizer = Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))  # noqa: S106  # pyright: ignore[reportCallIssue]
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.WordPiece()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")  # noqa: S106


def byte_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_words_begin_with_a_space_and_their_parts_do_not() -> None:
    tokenizer = wordpiece_tokenizer()
    ids = tokenizer("walking home. not home")["input_ids"]
    assert text_pieces(tokenizer, ids) == ("walk", "ing", " home", ".", " not", " home")


def test_special_tokens_are_spelled() -> None:
    assert text_pieces(word_tokenizer(), [2, 4, 5, 3]) == ("[CLS]", " w0", " w1", " [SEP]")


@pytest.mark.parametrize("text", ["a naïve café, 你好!", "tab\tand 🙂 face", "é", ""])
def test_pieces_of_bytes_are_the_text(text: str) -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer(text)["input_ids"]
    pieces = text_pieces(tokenizer, ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == text


def test_bytes_that_are_no_character_do_not_swallow_what_follows() -> None:
    tokenizer = byte_tokenizer()
    broken = tokenizer("é")["input_ids"][:1]
    pieces = text_pieces(tokenizer, [*broken * 6, *tokenizer("abc")["input_ids"]])
    assert "".join(pieces).endswith("abc")


class Tidying:
    """A decoder that tidies up what it has said."""

    def decode(self, ids: list[int]) -> str:
        return " ".join({1: "do", 2: "not", 3: "go"}[i] for i in ids).replace("do not", "Dn")


def test_a_decoder_that_tidies_up_loses_no_token() -> None:
    assert text_pieces(Tidying(), [1, 2, 3]) == ("do", " not", " go")
