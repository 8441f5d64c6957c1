"""A translator whose attention is inference: the papers' figure 2a."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments.tensor import INTEGERS, check_flags, check_tensor, checked_argument
from fenchel.errors import ProblemError
from fenchel.models.decoding import Decoded, beam_search, greedy_search
from fenchel.models.inference import Inference
from fenchel.models.translation.decoder import DECODERS, Look, State
from fenchel.models.translation.encoder import Encoder, Reading
from fenchel.models.translation.evidence import SCORES, evidence_of
from fenchel.models.translation.head import HEADS, Head
from fenchel.models.translation.looking import Looking
from fenchel.models.translation.preference import PLACES, PREFERENCES, preference_of
from fenchel.nn.sizes import check_choice, check_positive, check_sizes

__all__ = ["ATTENTIONS", "QUERIES", "STARTS", "Translator"]

ATTENTIONS = ("inference", "none")
"""How the source is looked at, by name."""

QUERIES = tuple(DECODERS)
"""How a query comes about, by name."""

STARTS = ("encoder", "zero")
"""What the decoder begins with, by name."""

_OWNER = "Translator"
_BEYOND = 10  # words of a translation besides two for each of the source


class Translator(nn.Module):
    r"""Reads a sentence with LSTMs, and writes another one word by word.

    The states of the source are the templates and the values. For each word of the target, LSTMs over the words before
    give the state s and from it the evidence z, and with the preference u

    .. math:: p = \arg\min_p \tfrac\alpha2\lVert\mu + z - \mathbb{E}_p[t]\rVert^2 + \mathcal{K}(p, u), \qquad
              h = \mathbb{E}_p[t]

    The head scores the next word from h and s.

    Attributes:
        templates: The :class:`~fenchel.models.translation.Encoder`.
        decoder: LSTMs over the target's words, and with them when a query is asked.
        evidence: From queries to z; None without attention.
        preference: u; None without attention.
        inference: The block g; None without attention.
        head: From h and s to scores.
        bridge: From the encoder's last state to what the decoder begins with; None where that is zeros.

    Args:
        source_vocabulary: How many numbers the source's words have; 0 is padding.
        target_vocabulary: Likewise of the target's, in which ``BEGIN`` and ``END`` are 2 and 3.
        width: Of all embeddings and states.
        depth: LSTM layers on either side.
        bidirectional: Whether the source is read from both sides.
        query: ``paper``, ``bahdanau`` or ``luong``; see :mod:`fenchel.models.translation.decoder`.
        score: ``dot``, ``general`` or ``additive``; see :func:`fenchel.models.translation.evidence_of`.
        preference: ``uniform``, ``context``, ``relative`` or ``gaussian``; see
            :func:`fenchel.models.translation.preference_of`.
        place: Of the Gaussian's middle, ``scaled`` or ``predicted``.
        length_ratio: Words of the source for each of the target, for ``scaled``.
        spread: σ of the Gaussian at the start, in words.
        head: ``add`` or ``concat``.
        tied: Whether the head scores words by their embeddings.
        start: What the decoder begins with, ``encoder`` (its last state, through a learned map) or ``zero``.
        attention: ``inference``; or ``none``, where h is the encoder's last state whatever the query.
        estimator: ``first_order``, ``second_order`` or ``exact``.
        alpha: α > 0.
        closeness: The name of 𝒦; None is Kullback and Leibler's.
        dropout: Probability in [0, 1) with which elements are dropped in training.
        longest: How many words a translation has at most.

    Raises:
        ProblemError: On an argument that cannot be used, with its value and what was expected.

    Reference:
        The papers' figures 1 and 2a; textbook's 15.4.4.

    Example:
        >>> model = Translator(source_vocabulary=20, target_vocabulary=30, width=8, estimator="exact")
        >>> source = torch.tensor([[4, 7, 3], [5, 3, 0]])
        >>> model(source=source, target=torch.tensor([[2, 9, 4], [2, 8, 0]])).shape
        torch.Size([2, 3, 30])
    """

    BEGIN, END = 2, 3

    def __init__(
        self,
        source_vocabulary: int,
        target_vocabulary: int,
        width: int = 256,
        depth: int = 2,
        bidirectional: bool = True,
        query: str = "paper",
        score: str = "general",
        preference: str = "uniform",
        place: str = "scaled",
        length_ratio: float = 1.0,
        spread: float = 4.0,
        head: str = "concat",
        tied: bool = True,
        start: str = "encoder",
        attention: str = "inference",
        estimator: str = "first_order",
        alpha: float = 1.0,
        closeness: str | None = None,
        dropout: float = 0.3,
        longest: int = 128,
    ) -> None:
        super().__init__()
        self._configuration = {name: value for name, value in locals().items() if name not in _NO_ARGUMENTS}
        sizes = {"source_vocabulary": source_vocabulary, "target_vocabulary": target_vocabulary}
        check_sizes(_OWNER, **sizes, width=width, depth=depth, longest=longest)
        check_positive(_OWNER, length_ratio=length_ratio, spread=spread, alpha=alpha)
        check_flags(bidirectional=bidirectional, tied=tied)
        check_choice(_OWNER, QUERIES, query=query)
        check_choice(_OWNER, SCORES, score=score)
        check_choice(_OWNER, PREFERENCES, preference=preference)
        check_choice(_OWNER, PLACES, place=place)
        check_choice(_OWNER, HEADS, head=head)
        check_choice(_OWNER, STARTS, start=start)
        check_choice(_OWNER, ATTENTIONS, attention=attention)
        checked_argument("dropout", dropout, name=f"dropout of {_OWNER}")
        if bidirectional and width % 2:
            raise ProblemError(
                f"width of {_OWNER} is {width}; two directions share it, so expected an even number"
            )
        if score == "additive" and estimator != "first_order":
            raise ProblemError(
                f"estimator of {_OWNER} is {estimator!r} with the score 'additive', which is all preference: the "
                "evidence is 0 and all estimators agree; expected 'first_order'"
            )
        self.longest = longest
        self.templates = Encoder(
            source_vocabulary, width, depth, bidirectional=bidirectional, dropout=dropout
        )
        self.decoder = DECODERS[query](target_vocabulary, width, depth, dropout)
        attends = attention == "inference"
        self.evidence = evidence_of(score, width) if attends else None
        self.preference = (
            preference_of(
                preference,
                width=width,
                score=score,
                place=place,
                length_ratio=length_ratio,
                spread=spread,
            )
            if attends
            else None
        )
        self.inference = Inference(estimator=estimator, alpha=alpha, closeness=closeness) if attends else None
        self.head = Head(target_vocabulary, width, head, dropout=dropout, tied=tied)
        self.bridge = nn.Linear(width, 2 * depth * width) if start == "encoder" else None
        self._one_by_one = query != "paper"

    def configuration(self) -> dict[str, Any]:
        """The arguments from which the model was built, as JSON can hold them."""
        return dict(self._configuration)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Scores of the word after each of the target's, (B, m, target_vocabulary).

        Args:
            source: Numbers of words (B, n), integers; 0 is padding, and stands behind the words.
            target: Likewise (B, m), each sentence after ``BEGIN``.

        Raises:
            ProblemError: If they are no such numbers, or a sentence is empty.
        """
        check_tensor("target", target, "(B, words)", dtypes=INTEGERS, dims=2)
        reading = self.read(source)
        asked = target.shape[1] if self._one_by_one else None
        with contextlib.nullcontext() if self.inference is None else self.inference.steps():
            look = self.looking(reading, asked, target == 0)
            found = self.decoder(target, self.begun(reading), look, self.head)
        return self.scored(found)

    def read(self, source: Tensor) -> Reading:
        """The templates of source sentences.

        Args:
            source: As ``forward`` takes it.

        Raises:
            ProblemError: As ``forward``.
        """
        check_tensor("source", source, "(B, words)", dtypes=INTEGERS, dims=2)
        empty = source[:, :1] == 0 if source.shape[1] else torch.ones(len(source), 1, dtype=torch.bool)
        if bool(empty.any()):
            row = int(empty.flatten().nonzero()[0])
            raise ProblemError(
                f"source has no word first in row {row}; expected at least one, with padding (0) behind"
            )
        if bool(((source[:, :-1] == 0) & (source[:, 1:] != 0)).any()):
            raise ProblemError("source has padding (0) before a word; expected it behind the words alone")
        return self.templates(source)

    def begun(self, reading: Reading) -> State:
        """What the decoder keeps before the first word."""
        shape = (len(reading.last), self.decoder.depth, self.decoder.width)
        if self.bridge is None:
            hidden = cell = reading.last.new_zeros(shape)
        else:
            hidden, cell = self.bridge(reading.last).unflatten(-1, (2, *shape[1:])).unbind(1)
            hidden = torch.tanh(hidden)
        return self.decoder.start(hidden, cell)

    def looking(self, reading: Reading, queries: int | None, query_padding: Tensor | None = None) -> Look:
        """What answers queries.

        Args:
            reading: Of the source.
            queries: How many are asked one by one; None where they are asked at once, or nobody knows.
            query_padding: True where there is none to be asked, bool (B, queries), for audits.
        """
        if self.inference is None or self.evidence is None or self.preference is None:
            return lambda queries, _: reading.last.unsqueeze(1).expand_as(queries)
        return Looking(
            reading,
            evidence=self.evidence,
            preference=self.preference,
            inference=self.inference,
            queries=queries,
            query_padding=query_padding,
        )

    def scored(self, found: Tensor) -> Tensor:
        """Scores of words, (B, m, target_vocabulary), from what the head put together."""
        return self.head(found, self.decoder.embed.weight)

    def translated(
        self, source: Tensor, *, beam: int = 1, length_power: float = 1.0, never: tuple[int, ...] = (0, 1, 2)
    ) -> list[Decoded]:
        """Translations, greedily or by a beam; all sentences at once, and none depends on another.

        A translation ends at the latest after ``longest`` words, and after twice as many as its source has and ten.

        Args:
            source: As ``forward`` takes it.
            beam: How many beginnings are kept; 1 is greedy.
            length_power: Beams are compared by log P / length^power.
            never: Numbers that no translation has: of padding, of what is not known, and ``BEGIN``.

        Raises:
            ProblemError: As ``forward``, or on a beam that is no number of at least 1.
        """
        reading = self.read(source)
        rows = len(source)
        most = 2 * (source != 0).sum(1) + _BEYOND
        state = (*reading, source.new_zeros(rows), most, *self.begun(reading))
        banned = torch.tensor(never, dtype=torch.int64, device=source.device)
        others = torch.arange(len(self.head.bias), device=source.device) != self.END

        def step(word: Tensor, state: State) -> tuple[Tensor, State]:
            read, (places, most), kept = Reading(*state[:3]), state[3:5], state[5:]
            place = int(places[0])
            look = self.looking(read, None)
            found, kept = self.decoder.step(word.unsqueeze(1), kept, look, self.head, place)
            scores = self.scored(found).squeeze(1).index_fill(-1, banned, -torch.inf)
            scores = scores.masked_fill((places >= most).unsqueeze(1) & others, -torch.inf)
            return scores.log_softmax(-1), (*read, places + 1, most, *kept)

        limits = {"begin": self.BEGIN, "end": self.END, "longest": self.longest}
        if beam == 1:
            return greedy_search(step, state, **limits)
        return beam_search(step, state, **limits, width=beam, length_power=length_power)


_NO_ARGUMENTS = ("self", "__class__")
