"""A classifier of sentences, or of events in time: attention asks one learned question of what was read."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments.tensor import check_tensor, checked_argument
from fenchel.errors import ProblemError
from fenchel.models.inference import Inference
from fenchel.models.question import SCORES as SCORES
from fenchel.models.question import Question, check_score
from fenchel.models.word_states import WordStates, masked_mean
from fenchel.nn.attending import KeyProjection
from fenchel.nn.inference import Inferred
from fenchel.nn.preference import (
    AbstractPreference,
    Additive,
    AttentionInputs,
    Context,
    GaussianWindow,
    KeyPadding,
    LearnedBias,
    Recency,
)
from fenchel.nn.sizes import check_choice, check_sizes

__all__ = ["POOLINGS", "PREFERENCES", "SCORES", "Classifier"]

POOLINGS = ("attention", "mean", "bag")
PREFERENCES = ("uniform", "position", "context", "gaussian", "recency")
_OWNER = "Classifier"


class Classifier(nn.Module):
    r"""Words or vectors are read, and every head asks one learned question of what came of them.

    For head h with question :math:`z_h`, templates :math:`t_i = W_k x_i / \sqrt d` of the states :math:`x_i` and the
    preference u,

    .. math:: p = \arg\min_p \tfrac\alpha2\lVert\mu + z_h - \mathbb{E}_p[t]\rVert^2 + \mathcal{K}(p, u), \qquad
              \mathrm{pooled}_h = \mathbb{E}_p[W_v x]

    and ``head`` reads the answers side by side. Its parts are ``states``, ``templates``, ``values``, ``preference``,
    ``evidence``, ``inference`` and ``head``; each can be exchanged. As α goes to 0, p goes to u.

    Controls: ``pooling="mean"`` has the mean of :math:`W_v x_i` in the place of the answers, which is what a uniform u
    says at α = 0; ``pooling="bag"`` has the mean of the words' embeddings, a linear classifier of which words there
    are. Neither has preference, evidence or inference.

    Args:
        vocabulary: How many numbers words have, 0 of which is padding; None where vectors are given.
        classes: How many classes.
        width: Of embeddings and states; divisible by ``heads``.
        given: Width of the vectors that are given in place of words; None where words have numbers.
        gaps: Whether every vector comes with how long ago it was.
        heads: How many questions are asked.
        encoder: What makes states: ``"words"``, ``"bigrams"``, ``"conv"`` or ``"lstm"``; see :class:`WordStates`.
        depth: How many layers ``conv`` and ``lstm`` have.
        pooling: ``"attention"``, ``"mean"`` or ``"bag"``.
        preference: u: ``"uniform"``; ``"position"``, a learned weight for each head and place; ``"context"``, a network
            that looks at a word and at all of them; ``"gaussian"``, around a learned share of the sentence's length;
            ``"recency"``, which decays with the gaps.
        score: ``"dot"``; ``"general"``, the question through a learned form; ``"additive"``, Bahdanau's network, which
            is all preference: the evidence is 0.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``.
        closeness: The name of 𝒦, such as ``"tsallis:1.5"``; None is Kullback and Leibler's.
        alpha: α > 0.
        longest: How many words a sentence has at most where places have weights.
        dropout: Probability in [0, 1) with which elements of embeddings and of what is pooled are dropped.
        word_dropout: Probability in [0, 1) with which a word is made unknown, in training.
        buckets: How many embeddings the pairs of ``bigrams`` share.

    Raises:
        ProblemError: On an argument that cannot be used, with its value and what was expected.

    Reference:
        The papers' figure 1 and equation (1); the textbook's 15.4.5.

    Example:
        >>> model = Classifier(20, 3, width=8, heads=2, estimator="exact", preference="context")
        >>> model(torch.tensor([[4, 7, 2], [5, 0, 0]])).shape
        torch.Size([2, 3])
        >>> records = Classifier(None, 2, width=8, given=5, gaps=True, heads=2, preference="recency")
        >>> records(torch.randn(2, 3, 5), gaps=torch.tensor([[9.0, 2.0, 0.0], [4.0, 1.0, 0.5]])).shape
        torch.Size([2, 2])
    """

    # Parts that a control is without; whatever takes the place of one is called alike.
    templates: Any
    values: Any
    preference: Any
    evidence: Any
    inference: Any

    def __init__(
        self,
        vocabulary: int | None,
        classes: int,
        width: int = 128,
        given: int | None = None,
        gaps: bool = False,
        heads: int = 4,
        encoder: str = "words",
        depth: int = 1,
        pooling: str = "attention",
        preference: str = "uniform",
        score: str = "dot",
        estimator: str = "first_order",
        closeness: str | None = None,
        alpha: float = 1.0,
        longest: int = 128,
        dropout: float = 0.5,
        word_dropout: float = 0.0,
        buckets: int = 2**15,
    ) -> None:
        super().__init__()
        self._configuration = {
            name: value for name, value in locals().items() if name not in ("self", "__class__")
        }
        check_sizes(_OWNER, classes=classes, width=width, heads=heads, longest=longest)
        checked_argument("dropout", dropout, name=f"dropout of {_OWNER}")
        check_choice(_OWNER, POOLINGS, pooling=pooling)
        check_choice(_OWNER, PREFERENCES, preference=preference)
        check_score(_OWNER, score, estimator)
        self._check_choices(gaps, given, encoder, pooling, preference, score, estimator)
        if width % heads:
            raise ProblemError(f"heads of {_OWNER} is {heads} and width {width}; heads must divide the width")
        self.gaps, self.heads, self.pooling = gaps, heads, pooling
        self.states = WordStates(
            vocabulary,
            width,
            given=given,
            encoder=encoder,
            depth=depth,
            dropout=dropout,
            word_dropout=word_dropout,
            buckets=buckets,
            owner=_OWNER,
        )
        self.templates = self.values = self.preference = self.evidence = self.inference = None
        if pooling != "bag":
            self.values = nn.Linear(width, width)
        if pooling == "attention":
            self.templates = nn.Linear(width, width)
            self.evidence = Question(heads, width // heads, score)
            self.preference = _preference(preference, score, heads, width, int(gaps), longest)
            self.inference = Inference(heads, estimator=estimator, alpha=alpha, closeness=closeness)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, classes)

    @staticmethod
    def _check_choices(
        gaps: bool, given: int | None, encoder: str, pooling: str, preference: str, score: str, estimator: str
    ) -> None:
        if gaps and given is None:
            raise ProblemError(
                f"gaps of {_OWNER} is True, but words have no times; give vectors (given=WIDTH)"
            )
        if preference == "recency" and not gaps:
            raise ProblemError(
                f"preference of {_OWNER} is 'recency', which reads gaps; build it with gaps=True"
            )
        if pooling == "bag" and encoder != "words":
            raise ProblemError(
                f"pooling of {_OWNER} is 'bag' and encoder {encoder!r}; a bag of words has encoder='words'"
            )

    def configuration(self) -> dict[str, Any]:
        """The arguments from which the model was built, as JSON can hold them."""
        return dict(self._configuration)

    def forward(self, words: Tensor, *, padding: Tensor | None = None, gaps: Tensor | None = None) -> Tensor:
        """Logits (B, classes).

        Args:
            words: Numbers of the words of each sentence, integers (B, n), 0 for padding; or vectors (B, n, given).
            padding: Of vectors, True where there is none, bool (B, n); None is nowhere.
            gaps: How long ago each vector was, (B, n).

        Raises:
            ProblemError: If they are neither, or gaps are missing or not asked for.
        """
        states, hidden = self.states(words, padding)
        gaps = self._checked_gaps(gaps, states)
        if self.pooling == "attention":
            pooled = self.asked(states, hidden, gaps).output.flatten(1)
        else:
            pooled = masked_mean(states if self.values is None else self.values(states), hidden)
        return self.head(self.dropout(pooled))

    def asked(self, states: Tensor, padding: Tensor, gaps: Tensor | None = None, **needed: bool) -> Inferred:
        """What the heads are answered, (B, heads, 1, width / heads).

        Args:
            states: (B, n, width).
            padding: True where there is no word, bool (B, n).
            gaps: (B, n), for a model with gaps.
            **needed: ``need_weights`` and ``need_certificate`` of :class:`Inference`.
        """
        of_heads = [
            made(states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for made in (self.templates, self.values)
        ]
        seen = states if gaps is None else torch.cat((states, gaps.to(states.dtype).unsqueeze(-1)), -1)
        evidence = self.evidence(len(states)).to(of_heads[0].dtype)
        inputs = AttentionInputs(
            len(states),
            self.heads,
            1,
            states.shape[1],
            states.device,
            of_heads[0].dtype,
            query_inputs=self.evidence.asked(len(states)).to(seen.dtype),
            key_inputs=seen,
            key_padding=padding,
            query_offset=0,
        )
        weight = self.templates.weight.unflatten(0, (self.heads, -1))
        bias = self.templates.bias.view(self.heads, -1)
        return self.inference(
            *of_heads,
            evidence,
            self.preference(inputs),
            scale=of_heads[0].shape[-1] ** -0.5,
            projection=KeyProjection(states, weight, bias),
            key_padding=padding,
            **needed,
        )

    def _checked_gaps(self, gaps: Tensor | None, states: Tensor) -> Tensor | None:
        if (gaps is not None) != self.gaps:
            raise ProblemError(
                "gaps are missing; this model was built with gaps=True and asks how long ago each vector was, (B, n)"
                if self.gaps
                else "gaps are given to a model that was built without (gaps=False)"
            )
        if gaps is not None:
            check_tensor("gaps", gaps, "(B, n)", dims=2)
            if gaps.shape != states.shape[:2]:
                raise ProblemError(
                    f"gaps have shape {tuple(gaps.shape)}; expected (B, n) = {tuple(states.shape[:2])}, one a vector"
                )
        return gaps


def _preference(name: str, score: str, heads: int, width: int, more: int, longest: int) -> AbstractPreference:
    """The preference of a name, with what the score adds to it, over words that are none of padding."""
    made: AbstractPreference = KeyPadding()
    if name == "position":
        made = made * LearnedBias(heads, 1, longest)
    elif name == "context":
        made = made * Context(heads, width + more)
    elif name == "gaussian":
        made = made * GaussianWindow(heads, predict_location=True, query_dim=width)
    elif name == "recency":
        made = made * Recency(heads)
    if score == "additive":
        made = made * Additive(heads, width, width + more, hidden=max(width // heads, 1))
    return made
