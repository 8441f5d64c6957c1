"""Small classifiers of sentences: embeddings, pooled by attention that asks one learned question, or by their mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments.tensor import INTEGERS, check_tensor, checked_argument
from fenchel.errors import ProblemError
from fenchel.nn.attending import AttendingLayer, KeyProjection, LayerCall
from fenchel.nn.inference import Problem
from fenchel.nn.preference import AttentionInputs, KeyPadding, LearnedBias
from fenchel.nn.sizes import check_positive, check_sizes

__all__ = ["AbstractSentenceClassifier", "AttentionPooling", "MeanPooling"]

_PREFERENCES = ("uniform", "position")
_OWNER = "a classifier of sentences"


class AbstractSentenceClassifier(nn.Module, ABC):
    """Embeddings of words, pooled to one vector, and a linear classifier: everything but the pooling.

    Args:
        vocabulary: How many numbers words have; 0 is padding.
        classes: How many classes.
        width: Of the embeddings.
        dropout: Probability in [0, 1) with which elements of embeddings and of what is pooled are dropped.
    """

    def __init__(self, vocabulary: int, classes: int, width: int, dropout: float) -> None:
        super().__init__()
        check_sizes(_OWNER, vocabulary=vocabulary, classes=classes, width=width)
        self.sizes = {"vocabulary": vocabulary, "classes": classes, "width": width, "dropout": dropout}
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        self.value = nn.Linear(width, width)
        self.dropout = nn.Dropout(checked_argument("dropout", dropout, name=f"dropout of {_OWNER}"))
        self.classify = nn.Linear(width, classes)

    @abstractmethod
    def configuration(self) -> dict[str, Any]:
        """The arguments from which the model was built, as JSON can hold them."""

    @abstractmethod
    def pooled(self, words: Tensor, padding: Tensor) -> Tensor:
        """One vector a sentence, (B, width).

        Args:
            words: Embeddings (B, n, width).
            padding: True where there is no word (B, n).
        """

    def forward(self, numbers: Tensor) -> Tensor:
        """Logits (B, classes).

        Args:
            numbers: Of the words of each sentence (B, n), integers; 0 is padding. A sentence without words is pooled to
                zeros.

        Raises:
            ProblemError: If they are no such numbers.
        """
        check_tensor("numbers", numbers, "(B, words)", dtypes=INTEGERS, dims=2)
        words = self.dropout(self.embed(numbers))
        return self.classify(self.dropout(self.pooled(words, numbers == 0)))


class MeanPooling(AbstractSentenceClassifier):
    """The mean of the values of a sentence's words: attention that has not looked, p = u with u uniform.

    Args:
        vocabulary: How many numbers words have; 0 is padding.
        classes: How many classes.
        width: Of the embeddings.
        dropout: Probability in [0, 1) with which elements of embeddings and of what is pooled are dropped.

    Raises:
        ProblemError: On an argument that cannot be used, with its value and what was expected.

    Example:
        >>> MeanPooling(vocabulary=20, classes=3, width=8)(torch.tensor([[4, 7, 2], [5, 0, 0]])).shape
        torch.Size([2, 3])
    """

    def __init__(self, vocabulary: int, classes: int, width: int = 64, dropout: float = 0.5) -> None:
        super().__init__(vocabulary, classes, width, dropout)

    def configuration(self) -> dict[str, Any]:
        """The arguments from which the model was built, as JSON can hold them."""
        return dict(self.sizes)

    def pooled(self, words: Tensor, padding: Tensor) -> Tensor:
        """The mean over words that are none of padding."""
        real = (~padding).to(words.dtype).unsqueeze(-1)
        return (self.value(words) * real).sum(1) / real.sum(1).clamp_min(1)


class AttentionPooling(AttendingLayer, AbstractSentenceClassifier):
    r"""Every head asks one learned question of the words of a sentence, and is answered by inference.

    For head h with question z_h, templates :math:`t_i = W_k x_i / \sqrt d` and preference u,

    .. math:: p = \arg\min_p \tfrac\alpha2\lVert\mu + z_h - \mathbb{E}_p[t]\rVert^2 + \mathcal{K}(p, u), \qquad
              \mathrm{pooled}_h = \mathbb{E}_p[W_v x]

    As α goes to 0, p goes to u, and with a uniform u the model to :class:`MeanPooling`.

    Args:
        vocabulary: How many numbers words have; 0 is padding.
        classes: How many classes.
        width: Of the embeddings; divisible by ``heads``.
        heads: How many questions are asked.
        dropout: Probability in [0, 1) with which elements of embeddings and of what is pooled are dropped.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``.
        alpha: α > 0.
        preference: u, ``"uniform"`` or ``"position"``: a learned weight for each head and place in the sentence, which
            begins uniform.
        longest: How many words a sentence has at most where places have weights.

    Raises:
        ProblemError: On an argument that cannot be used, with its value and what was expected.

    Example:
        >>> model = AttentionPooling(vocabulary=20, classes=3, width=8, heads=2, estimator="exact")
        >>> model(torch.tensor([[4, 7, 2], [5, 0, 0]])).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        vocabulary: int,
        classes: int,
        width: int = 64,
        heads: int = 4,
        dropout: float = 0.5,
        estimator: str = "first_order",
        alpha: float = 1.0,
        preference: str = "uniform",
        longest: int = 64,
    ) -> None:
        super().__init__(vocabulary, classes, width, dropout)
        check_sizes(_OWNER, heads=heads, longest=longest)
        check_positive(_OWNER, alpha=alpha)
        checked_argument("estimator", estimator, name=f"estimator of {_OWNER}")
        if preference not in _PREFERENCES:
            raise ProblemError(
                f"preference of {_OWNER} is {preference!r}; expected one of {', '.join(_PREFERENCES)}"
            )
        if width % heads:
            raise ProblemError(f"heads of {_OWNER} is {heads} and width {width}; heads must divide the width")
        self.heads = self.num_heads = heads
        self.estimator, self.alpha, self.longest = estimator, alpha, longest
        self._preference = preference
        self.preference = (
            KeyPadding() if preference == "uniform" else KeyPadding() * LearnedBias(heads, 1, longest)
        )
        self.key = nn.Linear(width, width)
        self.question = nn.Parameter(torch.randn(heads, 1, width // heads))

    def _reset_parameters(self) -> None:
        nn.init.normal_(self.question)

    def configuration(self) -> dict[str, Any]:
        """The arguments from which the model was built, as JSON can hold them."""
        return {
            **self.sizes,
            "heads": self.heads,
            "estimator": self.estimator,
            "alpha": self.alpha,
            "preference": self._preference,
            "longest": self.longest,
        }

    def pooled(self, words: Tensor, padding: Tensor) -> Tensor:
        """What the heads infer, side by side."""
        batch, count, width = words.shape
        keys, values = (
            of_words(words).view(batch, count, self.heads, -1).transpose(1, 2)
            for of_words in (self.key, self.value)
        )
        inputs = AttentionInputs(
            batch,
            self.heads,
            1,
            count,
            device=words.device,
            dtype=keys.dtype,
            key_padding=padding,
            query_offset=0,
        )
        questions = self.question.to(keys.dtype).expand(batch, -1, -1, -1)
        weight = self.key.weight.unflatten(0, (self.heads, -1))
        bias = None if self.key.bias is None else self.key.bias.view(self.heads, -1)
        call = LayerCall(
            Problem(questions, keys, values, self.alpha, keys.shape[-1] ** -0.5),
            self.preference(inputs),
            KeyProjection(words, weight, bias),
        )
        answer = self.answer(
            call,
            dropout=0.0,
            need_weights=False,
            need_certificate=False,
            estimator=self.estimator,
            tol=None,
            max_steps=50,
        )
        return answer.output.reshape(batch, width)
