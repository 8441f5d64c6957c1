"""Decomposable attention: what one sentence says of another, word by word, in both directions."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fenchel.arguments.tensor import check_flags, checked_argument
from fenchel.errors import ProblemError
from fenchel.models.inference import Inference
from fenchel.models.question import check_score
from fenchel.models.relatedness import DEGREES
from fenchel.models.word_states import WordStates, masked_mean
from fenchel.nn.evidence import General
from fenchel.nn.inference import Inferred
from fenchel.nn.preference import (
    AbstractPreference,
    Additive,
    AttentionInputs,
    Context,
    KeyPadding,
    ProportionalWindow,
    RelativePosition,
    Uniform,
)
from fenchel.nn.sizes import check_choice, check_sizes

__all__ = ["ANSWERS", "COMPARISONS", "Pairs"]

POOLINGS = ("attention", "mean", "bag")
PREFERENCES = ("uniform", "context", "gaussian", "relative")
ANSWERS = ("labels", "relatedness", "both")
COMPARISONS = ("concatenated", "differences")
_OWNER = "Pairs"


class Sentence(NamedTuple):
    """One of the two, as it was read.

    Attributes:
        summary: The mean of what its words were given as, scaled, (B, width or given); None where nothing reads it.
        states: Of its words (B, n, width), 0 for padding.
        templates: f of them (B, heads, n, width / heads), 0 for padding.
        padding: Bool (B, n).
    """

    summary: Tensor | None
    states: Tensor
    templates: Tensor
    padding: Tensor


class Pairs(nn.Module):
    r"""Every word of a sentence attends to the other sentence and is compared with what it found there.

    With states :math:`a_i` and :math:`b_j` of the words and one matrix of scores :math:`e_{ij} = f(a_i)^\top f(b_j)`,
    two inferences are made: words of the premise ask the hypothesis, with templates :math:`f(b_j)/\sqrt d` and evidence
    :math:`f(a_i)`, and words of the hypothesis ask the premise, with the two exchanged. For a preference u of each,

    .. math:: p_i = \arg\min_p \tfrac\alpha2\lVert\mu + f(a_i) - \mathbb{E}_p[t]\rVert^2 + \mathcal{K}(p, u_i), \qquad
              \beta_i = \mathbb{E}_{p_i}[b], \qquad v_A = \sum_i g(a_i, \beta_i)

    and likewise :math:`v_B`; ``head`` and ``degree`` read both. Its parts are ``states``, ``templates`` (f),
    ``preference``, ``evidence``, ``inference`` (premise asks), ``inference_back`` (hypothesis asks), ``compare`` (g),
    ``head`` (labels) and ``degree`` (relatedness); each can be exchanged.

    With ``summary`` the heads read :math:`|\bar a - \bar b|` and :math:`\bar a \odot \bar b` too, of the means of the
    words' embeddings, or of the vectors that are given, each scaled to norm √width.

    Controls: ``pooling="mean"`` compares each word with the mean of the other sentence's, which is what a uniform u
    says at α = 0; ``pooling="bag"`` compares no words: the heads read the summary alone. Neither has templates,
    preference, evidence or inference.

    Args:
        vocabulary: How many numbers words have, 0 of which is padding; None where vectors are given.
        classes: How many labels there are.
        width: Of embeddings, states and hidden layers; divisible by ``heads``.
        given: Width of the vectors that are given in place of words; None where words have numbers.
        answers: ``"labels"``, ``"relatedness"``, a distribution over 1 to 5, or ``"both"``.
        heads: How many matrices of scores there are, each for its part of the states.
        encoder: What makes states: ``"words"``, ``"bigrams"``, ``"conv"`` or ``"lstm"``; see :class:`WordStates`.
        depth: How many layers ``conv`` and ``lstm`` have.
        pooling: ``"attention"``, ``"mean"`` or ``"bag"``.
        comparison: What g is given: ``"concatenated"``, :math:`[a, \beta]`, or ``"differences"``,
            :math:`[a, \beta, a - \beta, a \odot \beta]`.
        summary: Whether the heads read difference and product of the sentences' means beside what was compared.
        preference: u: ``"uniform"``; ``"context"``, a network that looks at a word and at all of its sentence;
            ``"gaussian"``, around the proportional place; ``"relative"``, learned by distance.
        score: ``"dot"``; ``"general"``, :math:`f(a)^\top W f(b)`; ``"additive"``, Bahdanau's network, which is all
            preference: the evidence is 0.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``.
        closeness: The name of 𝒦, such as ``"tsallis:1.5"``; None is Kullback and Leibler's.
        alpha: α > 0.
        dropout: Probability in [0, 1) with which elements of embeddings and of hidden layers are dropped.
        word_dropout: Probability in [0, 1) with which a word is made unknown, in training.
        buckets: How many embeddings the pairs of ``bigrams`` share.

    Raises:
        ProblemError: On an argument that cannot be used, with its value and what was expected.

    Reference:
        Parikh et al. 2016, A decomposable attention model for natural language inference; the textbook's 15.4.6.
        Relatedness as a distribution: Tai et al. 2015, section 4.2.

    Example:
        >>> model = Pairs(20, width=8, preference="gaussian")
        >>> says = model(torch.tensor([[4, 7, 2], [5, 3, 0]]), torch.tensor([[4, 9], [6, 0]]))
        >>> says["labels"].shape, says["relatedness"].shape
        (torch.Size([2, 3]), torch.Size([2, 5]))
    """

    # Parts that a control is without; whatever takes the place of one is called alike.
    templates: Any
    preference: Any
    evidence: Any
    additive: Any
    inference: Any
    inference_back: Any
    compare: Any

    def __init__(
        self,
        vocabulary: int | None,
        classes: int = 3,
        width: int = 200,
        given: int | None = None,
        answers: str = "both",
        heads: int = 1,
        encoder: str = "words",
        depth: int = 1,
        pooling: str = "attention",
        comparison: str = "differences",
        summary: bool = False,
        preference: str = "uniform",
        score: str = "dot",
        estimator: str = "first_order",
        closeness: str | None = None,
        alpha: float = 1.0,
        dropout: float = 0.2,
        word_dropout: float = 0.0,
        buckets: int = 2**15,
    ) -> None:
        super().__init__()
        self._configuration = {
            name: value for name, value in locals().items() if name not in ("self", "__class__")
        }
        check_sizes(_OWNER, classes=classes, width=width, heads=heads)
        checked_argument("dropout", dropout, name=f"dropout of {_OWNER}")
        check_choice(_OWNER, ANSWERS, answers=answers)
        check_choice(_OWNER, POOLINGS, pooling=pooling)
        check_choice(_OWNER, COMPARISONS, comparison=comparison)
        check_choice(_OWNER, PREFERENCES, preference=preference)
        check_score(_OWNER, score, estimator)
        if width % heads:
            raise ProblemError(f"heads of {_OWNER} is {heads} and width {width}; heads must divide the width")
        check_flags(summary=summary)
        self.heads, self.pooling, self.comparison = heads, pooling, comparison
        self.summary = summary or pooling == "bag"
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
        self.templates = self.preference = self.evidence = self.additive = None
        self.inference = self.inference_back = self.compare = None
        if pooling == "attention":
            self.templates = _network(width, width, width, dropout)
            self.preference = KeyPadding() * _preference(preference, heads, width)
            self.evidence = General(heads, width // heads) if score == "general" else None
            self.additive = Additive(heads, width, hidden=width // heads) if score == "additive" else None
            self.inference, self.inference_back = (
                Inference(heads, estimator=estimator, alpha=alpha, closeness=closeness) for _ in range(2)
            )
        if pooling != "bag":
            self.compare = _network((2 if comparison == "concatenated" else 4) * width, width, width, dropout)
        self.dropout = nn.Dropout(dropout)
        read = 0 if pooling == "bag" else 2 * width
        if self.summary:
            read += 2 * (given or width)
        self.head = None if answers == "relatedness" else _network(read, width, classes, dropout, last=True)
        self.degree = None if answers == "labels" else _network(read, width, DEGREES, dropout, last=True)

    def configuration(self) -> dict[str, Any]:
        """The arguments from which the model was built, as JSON can hold them."""
        return dict(self._configuration)

    def forward(
        self,
        premises: Tensor,
        hypotheses: Tensor,
        *,
        premise_padding: Tensor | None = None,
        hypothesis_padding: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Logits by what they are of: ``labels`` (B, classes) and ``relatedness`` (B, 5), as asked for.

        Args:
            premises: Numbers of the words, integers (B, m), 0 for padding; or vectors (B, m, given).
            hypotheses: Likewise, (B, n) or (B, n, given).
            premise_padding: Of vectors, True where there is none, bool (B, m); None is nowhere.
            hypothesis_padding: Likewise, bool (B, n).

        Raises:
            ProblemError: If they are neither, or of different numbers.
        """
        premise, hypothesis = self.read(premises, premise_padding), self.read(hypotheses, hypothesis_padding)
        if len(premise.states) != len(hypothesis.states):
            raise ProblemError(
                f"there are {len(premise.states)} premises and {len(hypothesis.states)} hypotheses; expected as many"
            )
        read = self._compared(premise, hypothesis)
        heads = {"labels": self.head, "relatedness": self.degree}
        return {name: head(read) for name, head in heads.items() if head is not None}

    def read(self, words: Tensor, padding: Tensor | None = None) -> Sentence:
        """States and templates of the words of one sentence."""
        states, hidden = self.states(words, padding)
        summary = self._summary(words, hidden) if self.summary else None
        if self.templates is None:
            return Sentence(summary, states, states.unsqueeze(1), hidden)
        templates = self.templates(states).masked_fill(hidden.unsqueeze(-1), 0.0)
        return Sentence(summary, states, self._of_heads(templates), hidden)

    def _summary(self, words: Tensor, padding: Tensor) -> Tensor:
        mean = masked_mean(words if self.states.given else self.states.embed(words), padding)
        return nn.functional.normalize(mean, dim=-1) * mean.shape[-1] ** 0.5

    def asked(self, premise: Sentence, hypothesis: Sentence, **needed: bool) -> tuple[Inferred, Inferred]:
        """What words of the premise find in the hypothesis, and the other way round, (B, heads, m, width / heads).

        Args:
            premise: From :meth:`read`.
            hypothesis: Likewise.
            **needed: ``need_weights`` and ``need_certificate`` of :class:`Inference`.
        """
        directions = ((premise, hypothesis, self.inference), (hypothesis, premise, self.inference_back))
        scores = self._additive_scores(premise, hypothesis)
        found = []
        for back, (query, key, infer) in enumerate(directions):
            log_preference = self.preference(self._inputs(query, key))
            evidence = query.templates
            if scores is not None:
                # One matrix of scores: the way back reads its transpose.
                own = scores.transpose(-1, -2) if back else scores
                log_preference = _added(log_preference, own)
                evidence = torch.zeros_like(evidence)
            elif self.evidence is not None:
                form = self.evidence.weight
                evidence = evidence @ (form.transpose(-1, -2) if back else form)
            found.append(
                infer(
                    key.templates,
                    self._of_heads(key.states),
                    evidence,
                    log_preference,
                    scale=key.templates.shape[-1] ** -0.5,
                    key_padding=key.padding,
                    query_padding=query.padding,
                    **needed,
                )
            )
        return found[0], found[1]

    def _compared(self, premise: Sentence, hypothesis: Sentence) -> Tensor:
        """What the heads read."""
        read = []
        if self.compare is not None:
            for own, other in zip((premise, hypothesis), self._found(premise, hypothesis), strict=True):
                states, other = own.states, other.expand_as(own.states)
                parts = [states, other]
                if self.comparison == "differences":
                    parts += [states - other, states * other]
                compared = self.compare(torch.cat(parts, -1))
                read.append(compared.masked_fill(own.padding.unsqueeze(-1), 0.0).sum(1))
        one, other = premise.summary, hypothesis.summary
        if one is not None and other is not None:
            read += [(one - other).abs(), one * other]
        return self.dropout(torch.cat(read, -1))

    def _found(self, premise: Sentence, hypothesis: Sentence) -> list[Tensor]:
        """What each word of the premise is compared with, and each of the hypothesis."""
        if self.inference is None:
            return [masked_mean(each.states, each.padding).unsqueeze(1) for each in (hypothesis, premise)]
        return [one.output.transpose(1, 2).flatten(2) for one in self.asked(premise, hypothesis)]

    def _additive_scores(self, premise: Sentence, hypothesis: Sentence) -> Tensor | None:
        return None if self.additive is None else self.additive(self._inputs(premise, hypothesis))

    def _inputs(self, query: Sentence, key: Sentence) -> AttentionInputs:
        return AttentionInputs(
            len(query.states),
            self.heads,
            query.states.shape[1],
            key.states.shape[1],
            query.states.device,
            query.templates.dtype,
            query_inputs=query.states,
            key_inputs=key.states,
            key_padding=key.padding,
            query_padding=query.padding,
            query_offset=0,
        )

    def _of_heads(self, states: Tensor) -> Tensor:
        return states.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def _network(read: int, hidden: int, said: int, dropout: float, *, last: bool = False) -> nn.Sequential:
    """Two layers; what is no last answer is rectified too."""
    layers = [nn.Linear(read, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, said)]
    return nn.Sequential(*layers, *(() if last else (nn.ReLU(),)))


def _preference(name: str, heads: int, width: int) -> AbstractPreference:
    if name == "context":
        return Context(heads, width)
    if name == "gaussian":
        return ProportionalWindow(heads)
    return RelativePosition(heads) if name == "relative" else Uniform()


def _added(log_preference: Tensor | None, scores: Tensor) -> Tensor:
    """Log-weights and a mask or other log-weights together."""
    if log_preference is None:
        return scores
    if log_preference.dtype == torch.bool:
        return scores.masked_fill(~log_preference, -torch.inf)
    return scores + log_preference
