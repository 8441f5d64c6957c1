"""What filling in blanks has to beat: the most frequent word, and the likeliest one between its two neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

__all__ = ["NeighbourCounts"]

_SMOOTHING = 30.0


class NeighbourCounts:
    r"""Counts of words and of pairs of neighbours in rows of numbers.

    .. math:: P(r \mid w) = \frac{c(w, r) + \kappa\,P(r)}{c(w) + \kappa}

    and the same for P(w | l), the shares P of single words taken for what was not counted.

    Args:
        rows: Numbers of the text to train on, uncorrupted, with the special tokens around it.
        size: How many numbers there are.
        known: The least number that can be an answer.
        smoothing: κ.

    Example:
        >>> counts = NeighbourCounts([[2, 5, 6, 3], [2, 5, 7, 3], [2, 5, 7, 3]], size=8, known=5)
        >>> counts.most_frequent, counts.between(torch.tensor([5]), torch.tensor([3])).tolist()
        (5, [7])
    """

    def __init__(
        self, rows: Iterable[Sequence[int]], size: int, known: int, smoothing: float = _SMOOTHING
    ) -> None:
        tokens, pairs = _counted(rows, size)
        self.known, self.smoothing = known, smoothing
        self.counts = tokens.double()
        self.shares = self.counts / self.counts.sum()
        numbers, counts = pairs.unique(return_counts=True)
        left, right = numbers // size, numbers % size
        self._after = _Table(left, right, counts, size)
        order = right.argsort(stable=True)
        self._before = _Table(right[order], left[order], counts[order], size)

    @property
    def most_frequent(self) -> int:
        """The most frequent word that can be an answer."""
        return self.known + int(self.counts[self.known :].argmax())

    def between(self, left: Tensor, right: Tensor) -> Tensor:
        """The words w with the largest P(w | l) P(r | w), int64 (m,).

        Args:
            left: The word before each place, int64 (m,).
            right: The word after it.
        """
        found = [self._likeliest(*pair) for pair in zip(left.tolist(), right.tolist(), strict=True)]
        return torch.tensor(found, dtype=torch.int64)

    def _likeliest(self, left: int, right: int) -> int:
        follows = self._after.row(left) + self.smoothing * self.shares
        precedes = self._before.row(right) + self.smoothing * self.shares[right]
        scores = follows * precedes / (self.counts + self.smoothing)
        return self.known + int(scores[self.known :].argmax())


class _Table:
    """Counts by a first number, of second ones."""

    def __init__(self, first: Tensor, second: Tensor, counts: Tensor, size: int) -> None:
        self._second, self._counts, self._size = second, counts.double(), size
        self._ends = torch.bincount(first, minlength=size).cumsum(0).tolist()

    def row(self, number: int) -> Tensor:
        mine = slice(self._ends[number - 1] if number else 0, self._ends[number])
        found = torch.zeros(self._size, dtype=torch.float64)
        found[self._second[mine]] = self._counts[mine]
        return found


def _counted(rows: Iterable[Sequence[int]], size: int) -> tuple[Tensor, Tensor]:
    """How often each number is there, and all pairs of neighbours, as left · size + right."""
    tokens = torch.zeros(size, dtype=torch.int64)
    pairs: list[Tensor] = []
    for row in rows:
        numbers = torch.tensor(row, dtype=torch.int64)
        tokens += torch.bincount(numbers, minlength=size)
        pairs.append(numbers[:-1] * size + numbers[1:])
    return tokens, torch.cat(pairs)
