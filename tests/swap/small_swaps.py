"""Swaps that take a second: tiny random models with a language-model head, and texts for them."""

from typing import Any

import torch

from fenchel.swap import SwapReport, swap
from tests.auditing.small_audits import WORDS_KNOWN, some_texts
from tests.io.test_windows import word_tokenizer
from tests.tiny_models import tiny_model

FAMILIES = {"bert": "masked", "gpt2": "causal", "t5": "seq2seq", "marian": "seq2seq"}
_AUTOMATIC = {"masked": "MaskedLM", "causal": "CausalLM", "seq2seq": "Seq2SeqLM"}

SCORED = [
    (f"w{k} w{(3 * k) % 11} w{(5 * k) % 7}", f"w{k} w{(2 * k) % 13} w{k % 5} w{k % 3}", float((7 * k) % 5))
    for k in range(12)
]
"""Pairs of sentences with scores that mean nothing, some of them equal."""


def language_model(family: str, *, dtype: torch.dtype = torch.float64, **overrides: Any) -> Any:
    """``tiny_model(family)`` with the head that predicts its tokens."""
    import transformers

    body = tiny_model(family, vocab_size=WORDS_KNOWN + 4, **overrides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = getattr(transformers, f"AutoModelFor{_AUTOMATIC[FAMILIES[family]]}").from_config(body.config)
    # The body is the tiny model's; a masked one lacks its pooler, which no head reads.
    model.base_model.load_state_dict(body.state_dict(), strict=False)
    return model.to(dtype).eval()


def tokenizer_of(family: str) -> Any:
    """A token a word; with a mask token and special ones where the family has them."""
    if family == "gpt2":
        return word_tokenizer(special=None)
    return word_tokenizer(mask_token="[UNK]") if family == "bert" else word_tokenizer()  # noqa: S106


def small_swap(family: str = "bert", texts: Any = None, **options: Any) -> SwapReport:
    """``swap`` of a tiny model in double precision."""
    given: dict[str, Any] = {
        "max_length": 12,
        "batch_size": 3,
        "bootstrap": 100,
        "alphas": (0.7, 1.0, 1.3),
        **options,
    }
    model = given.pop("model", None) or language_model(family)
    return swap(
        model,
        tokenizer_of(family),
        some_texts() if texts is None and "pairs" not in given else texts,
        **given,
    )
