"""Words one after the other out of a model that says how likely each next one is: greedily, or by a beam."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fenchel.arguments.tensor import checked_argument
from fenchel.errors import ProblemError
from fenchel.nn.sizes import check_sizes

__all__ = ["Decoded", "Step", "beam_search", "greedy_search"]

State = tuple[Tensor, ...]
"""What a model keeps of each row between words; every tensor has the rows first."""

Step = Callable[[Tensor, State], tuple[Tensor, State]]
"""From the last word of each row (R,) and the state to the logarithms of the next word's probabilities (R, V) and the
state after it. Rows are independent of each other."""


class Decoded(NamedTuple):
    """What was said of one row.

    Attributes:
        words: Numbers of the words, without the one that ends them.
        log_probability: Of the words, and of ending there where they end; in nats.
        ended: Whether they end, or were cut at the greatest length.
    """

    words: tuple[int, ...]
    log_probability: float
    ended: bool

    @property
    def length(self) -> int:
        """How many words were asked for, the one that ends them among them."""
        return len(self.words) + self.ended

    def score(self, length_power: float) -> float:
        """What a beam is sorted by, log P / length^power.

        Args:
            length_power: 0 compares probabilities, 1 their means a word.
        """
        return self.log_probability / self.length**length_power


@torch.no_grad()
def greedy_search(step: Step, state: State, *, begin: int, end: int, longest: int) -> list[Decoded]:
    """The most likely word after each other, all rows at once; of words that are as likely the first.

    Args:
        step: The model.
        state: Before the first word, with R rows.
        begin: The word that stands before the first.
        end: The word that ends a row.
        longest: How many words are asked for at most, the end among them.

    Returns:
        One for each row.

    Raises:
        ProblemError: If ``longest`` is no whole number of at least 1.

    Example:
        >>> chain = torch.tensor([[0.0, 0.9, 0.1], [0.0, 0.2, 0.8], [1.0, 0.0, 0.0]]).log()
        >>> greedy_search(lambda last, state: (chain[last], state), (torch.zeros(1),), begin=0, end=2, longest=9)
        [Decoded(words=(1,), log_probability=-0.32850..., ended=True)]
    """
    check_sizes("greedy_search", longest=longest)
    rows = state[0].shape[0]
    last = torch.full((rows,), begin, dtype=torch.int64, device=state[0].device)
    likely = torch.zeros(rows, dtype=torch.float64, device=last.device)
    ended = torch.zeros(rows, dtype=torch.bool, device=last.device)
    said: list[Tensor] = []
    while len(said) < longest and not bool(ended.all()):
        log_probabilities, state = step(last, state)
        best, last = log_probabilities.double().max(-1)
        last = last.masked_fill(ended, end)
        likely += best.masked_fill(ended, 0.0)
        said.append(last)
        ended = ended | (last == end)
    words = torch.stack(said, 1).tolist()
    return [
        Decoded(tuple(row[: row.index(end)] if done else row), score, done)
        for row, score, done in zip(words, likely.tolist(), ended.tolist(), strict=True)
    ]


@torch.no_grad()
def beam_search(
    step: Step,
    state: State,
    *,
    begin: int,
    end: int,
    longest: int,
    width: int,
    length_power: float = 1.0,
) -> list[Decoded]:
    r"""The best of what a beam finds, :math:`\max \log P(w_1 \dots w_l)\, /\, l^{\,\text{power}}`, all rows at once.

    Each step keeps the ``width`` likeliest beginnings of a row that have not ended. What ends among the ``width``
    likeliest continuations is a candidate; a row is done when it has as many. A beam of 1 is greedy, one that holds
    every sequence finds the best of all.

    Args:
        step: The model.
        state: Before the first word, with R rows.
        begin: The word that stands before the first.
        end: The word that ends a row.
        longest: How many words are asked for at most, the end among them; what has not ended by then is a candidate as
            it is.
        width: How many beginnings are kept.
        length_power: 0 compares probabilities, 1 their means a word.

    Returns:
        One for each row.

    Raises:
        ProblemError: If a size is no whole number of at least 1, or the power is negative or not finite.

    Example:
        >>> chain = torch.tensor([[0.0, 0.6, 0.4], [0.0, 0.9, 0.1], [1.0, 0.0, 0.0]]).log()
        >>> found = beam_search(
        ...     lambda last, state: (chain[last], state), (torch.zeros(1),),
        ...     begin=0, end=2, longest=3, width=8, length_power=0.0,
        ... )
        >>> found[0].words, round(found[0].log_probability, 3)
        ((1, 1, 1), -0.722)
    """
    check_sizes("beam_search", longest=longest, width=width)
    if checked_argument("scale", length_power, name="length power of beam_search") < 0:
        raise ProblemError(
            f"length power of beam_search is {length_power!r}; expected a number of at least 0"
        )
    beams = _Beams(state, begin, end, width, length_power)
    for place in range(longest):
        beams.advance(step, last=place + 1 == longest)
        if beams.done:
            break
    return beams.best()


class _Beams:
    """The beginnings that are kept of every row, and what has ended; R rows of B beginnings each."""

    def __init__(self, state: State, begin: int, end: int, width: int, power: float) -> None:
        self.rows, self.width, self.end, self.power = state[0].shape[0], width, end, power
        device = state[0].device
        self.state = state
        self.likely = torch.zeros(self.rows, 1, dtype=torch.float64, device=device)
        self.words = torch.full((self.rows, 1, 1), begin, dtype=torch.int64, device=device)
        self.candidates: list[list[Decoded]] = [[] for _ in range(self.rows)]

    @property
    def done(self) -> bool:
        return all(len(found) >= self.width for found in self.candidates)

    def advance(self, step: Step, *, last: bool) -> None:
        kept = self.likely.shape[1]
        log_probabilities, state = step(self.words[:, :, -1].flatten(), self.state)
        scores = self.likely.unsqueeze(-1) + log_probabilities.double().view(self.rows, kept, -1)
        vocabulary = scores.shape[-1]
        # Twice the width: a beginning ends in one way alone, so at least half of these have not ended.
        likely, places = scores.flatten(1).topk(min(2 * self.width, kept * vocabulary), dim=1)
        before, word = places // vocabulary, places % vocabulary
        ends = word == self.end
        self._collect(likely[:, : self.width], before, word, ends[:, : self.width], last=last)
        alive = likely.masked_fill(ends, -torch.inf)
        order = alive.sort(dim=1, descending=True, stable=True).indices[:, : self.width]
        before, word = before.gather(1, order), word.gather(1, order)
        self.likely = alive.gather(1, order)
        earlier = self.words.gather(1, before.unsqueeze(-1).expand(-1, -1, self.words.shape[2]))
        self.words = torch.cat((earlier, word.unsqueeze(-1)), 2)
        chosen = (before + kept * torch.arange(self.rows, device=before.device).unsqueeze(1)).flatten()
        self.state = tuple(part.index_select(0, chosen) for part in state)

    def _collect(self, likely: Tensor, before: Tensor, word: Tensor, ends: Tensor, *, last: bool) -> None:
        wanted = (torch.ones_like(ends) if last else ends) & likely.isfinite()
        for row, place in wanted.nonzero().tolist():
            found = self.candidates[row]
            if len(found) >= self.width:
                continue
            said = self.words[row, before[row, place], 1:].tolist()
            ended = bool(ends[row, place])
            words = said if ended else [*said, int(word[row, place])]
            found.append(Decoded(tuple(words), likely[row, place].item(), ended))

    def best(self) -> list[Decoded]:
        return [max(found, key=lambda one: one.score(self.power)) for found in self.candidates]
