"""A state for every word of a sentence: its embedding or a given vector, alone or with what stands around it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fenchel.arguments.tensor import INTEGERS, check_tensor, checked_argument
from fenchel.errors import ProblemError
from fenchel.nn.sizes import check_choice, check_sizes

__all__ = ["ENCODERS", "WordStates", "masked_mean"]

_PADDING = 0
_UNKNOWN = 1

ENCODERS = ("words", "bigrams", "conv", "lstm")


class WordStates(nn.Module):
    r"""Words by number, or vectors that are given, to states :math:`x_1, \dots, x_n`.

    * ``words``: the embedding itself, so that order says nothing.
    * ``bigrams``: a second embedding is added, of the pair that the word makes with the one before it. Pairs share
      ``buckets`` embeddings; which, their numbers say.
    * ``conv``: a convolution over three words is added, :math:`x + \mathrm{GELU}(\mathrm{conv}(x))`, ``depth`` times.
    * ``lstm``: the hidden states of ``depth`` LSTM layers that read in both directions, half of the width each.

    Padding follows the words of a sentence; its states are 0, and it changes those of no word.

    Args:
        vocabulary: How many numbers words have, 0 of which is padding and 1 stands for what is unknown; None where
            vectors are given.
        width: Of the states.
        given: Width of the vectors that are given; None where words have numbers.
        encoder: One of the four; ``bigrams`` is for numbers alone.
        depth: How many layers ``conv`` and ``lstm`` have.
        dropout: Probability in [0, 1) with which elements of embeddings, and of states of ``conv`` and ``lstm``, are
            dropped.
        word_dropout: Probability in [0, 1) with which a word is made unknown, or a given vector 0, in training.
        buckets: How many embeddings pairs share.
        owner: What messages call it.

    Raises:
        ProblemError: On an argument that cannot be used, with its value and what was expected.

    Example:
        >>> states, padding = WordStates(20, 8, encoder="lstm")(torch.tensor([[4, 7, 2], [5, 0, 0]]))
        >>> states.shape, padding.tolist()
        (torch.Size([2, 3, 8]), [[False, False, False], [False, True, True]])
    """

    def __init__(
        self,
        vocabulary: int | None,
        width: int,
        *,
        given: int | None = None,
        encoder: str = "words",
        depth: int = 1,
        dropout: float = 0.0,
        word_dropout: float = 0.0,
        buckets: int = 2**15,
        owner: str = "WordStates",
    ) -> None:
        super().__init__()
        if (vocabulary is None) == (given is None):
            raise ProblemError(
                f"{owner} got vocabulary={vocabulary} and given={given}; expected one of them: words have numbers, or "
                "their vectors are given"
            )
        check_choice(owner, ENCODERS, encoder=encoder)
        check_sizes(owner, width=width, depth=depth, buckets=buckets)
        for name, share in (("dropout", dropout), ("word_dropout", word_dropout)):
            checked_argument("dropout", share, name=f"{name} of {owner}")
        if encoder == "bigrams" and vocabulary is None:
            raise ProblemError(f"encoder of {owner} is 'bigrams', which are pairs of words with numbers; expected "
                               "another one for vectors that are given")  # fmt: skip
        if encoder == "lstm" and width % 2:
            raise ProblemError(
                f"width of {owner} is {width}; expected an even one: each direction has half of it"
            )
        self.encoder, self.word_dropout, self.owner = encoder, word_dropout, owner
        if vocabulary is not None:
            check_sizes(owner, vocabulary=vocabulary)
            self.embed: nn.Module = nn.Embedding(vocabulary, width, padding_idx=_PADDING)
        else:
            check_sizes(owner, given=given)
            self.embed = nn.Linear(int(given or 0), width)
        self.given, self.buckets = given, buckets
        self.dropout = nn.Dropout(dropout)
        if encoder == "bigrams":
            self.pairs = nn.Embedding(buckets, width)
            nn.init.zeros_(self.pairs.weight)
        elif encoder == "conv":
            self.layers = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(depth))
        elif encoder == "lstm":
            self.layers = nn.LSTM(
                width, width // 2, depth, batch_first=True, bidirectional=True, dropout=dropout if depth > 1 else 0.0
            )  # fmt: skip

    def forward(self, words: Tensor, padding: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The states (B, n, width), and where there is padding, bool (B, n).

        Args:
            words: Numbers of the words, integers (B, n), 0 for padding; or vectors (B, n, given).
            padding: Of vectors, True where there is none, bool (B, n); None is nowhere.

        Raises:
            ProblemError: If they are neither.
        """
        if self.given is None:
            check_tensor("words", words, "(B, words)", dtypes=INTEGERS, dims=2)
            padding = words == _PADDING
            if self.training and self.word_dropout:
                lost = torch.rand(words.shape, device=words.device) < self.word_dropout
                words = torch.where(lost & ~padding, _UNKNOWN, words)
            states = self.embed(words)
            if self.encoder == "bigrams":
                states = states + self._of_pairs(words)
        else:
            check_tensor("vectors", words, f"(B, words, {self.given})", dims=3)
            if words.shape[-1] != self.given:
                raise ProblemError(
                    f"vectors have shape {tuple(words.shape)}; {self.owner} was built for (B, words, {self.given})"
                )
            padding = words.new_zeros(words.shape[:2], dtype=torch.bool) if padding is None else padding
            if self.training and self.word_dropout:
                words = words * (torch.rand((*words.shape[:2], 1), device=words.device) >= self.word_dropout)
            states = self.embed(words)
        states = self.dropout(states).masked_fill(padding.unsqueeze(-1), 0.0)
        return self._in_context(states, padding), padding

    def _of_pairs(self, words: Tensor) -> Tensor:
        """The embedding of each word with the one before it; the first has padding before it."""
        before = nn.functional.pad(words[:, :-1], (1, 0))
        return self.pairs((words.long() * 1000003 + before.long() * 7919) % self.buckets)

    def _in_context(self, states: Tensor, padding: Tensor) -> Tensor:
        hidden = padding.unsqueeze(-1)
        if self.encoder == "conv":
            assert isinstance(self.layers, nn.ModuleList)  # noqa: S101 - what a convolution has
            for layer in self.layers:
                seen = nn.functional.gelu(layer(states.transpose(1, 2)).transpose(1, 2))
                states = (states + self.dropout(seen)).masked_fill(hidden, 0.0)
        elif self.encoder == "lstm":
            # A sentence of padding alone is read as one word of padding.
            lengths = (~padding).sum(1).clamp_min(1).cpu()
            packed = nn.utils.rnn.pack_padded_sequence(
                states, lengths, batch_first=True, enforce_sorted=False
            )
            assert isinstance(self.layers, nn.LSTM)  # noqa: S101 - what an LSTM has
            read, _ = self.layers(packed)
            states, _ = nn.utils.rnn.pad_packed_sequence(
                read, batch_first=True, total_length=padding.shape[1]
            )
            states = self.dropout(states).masked_fill(hidden, 0.0)
        return states


def masked_mean(states: Tensor, padding: Tensor) -> Tensor:
    """The mean over words (B, width), those of padding left out; 0 where there are no others.

    Example:
        >>> masked_mean(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[False, False, True]])).tolist()
        [[2.0]]
    """
    real = (~padding).to(states.dtype).unsqueeze(-1)
    return (states * real).sum(1) / real.sum(1).clamp_min(1)
