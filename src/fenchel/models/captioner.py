"""Captions of images, the papers' figure 2b: cells of an image are templates, words so far are the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments import Flag
from fenchel.arguments.tensor import INTEGERS, check_tensor, checked_argument
from fenchel.errors import ProblemError
from fenchel.models.decoding import Decoded, beam_search
from fenchel.models.image_cells import ImageCells
from fenchel.models.inference import Inference
from fenchel.models.reward_baseline import RewardBaseline
from fenchel.nn.preference import AbstractPreference, AttentionInputs, Context, Uniform
from fenchel.nn.sizes import check_choice, check_sizes

__all__ = ["ATTENTIONS", "GRADIENTS", "PREFERENCES", "Captioner"]

ATTENTIONS = ("soft", "hard", "mean")
"""How an image enters a word: the mean of its cells under p, one cell drawn from p, or the mean of all cells."""

GRADIENTS = ("reinforce", "straight_through")
"""How hard attention learns where to look."""

PREFERENCES = ("uniform", "context")
"""What is believed of the cells before any word."""


class Captioner(nn.Module):
    r"""Says the next word of a caption from the words so far and from what they make it look at.

    An LSTM over the words so far, which never sees the image, has the state s; the evidence is :math:`z = W s`, the
    templates :math:`t_i` are the cells of a small convolutional network, and

    .. math:: p = \arg\min_p \tfrac\alpha2\lVert\mu + z - \mathbb{E}_p[t]\rVert^2 + \mathcal{K}(p, u), \qquad
              \log P(w) = f_\mathrm{out}(s + \beta h)_w, \qquad \beta = \sigma(\langle b, s\rangle + b_0)

    with :math:`h = \mathbb{E}_p[t]` where attention is soft. Where it is hard, h is one cell: drawn from p in training,
    the likeliest in evaluation (of several the first). ``mean`` is the control that does not look, h the mean of all.

    Args:
        vocabulary: How many numbers words have; 0 is padding.
        image_size: Side of the images in pixels.
        channels: Of the images.
        width: Of cells, words and states.
        depth: Convolutions; each halves the image, so that it has (image_size / 2^depth)² cells.
        attention: ``"soft"``, ``"hard"`` or ``"mean"``.
        gradient: Of hard attention, ``"reinforce"`` or ``"straight_through"``: as if the mean had been taken.
        preference: u, ``"uniform"`` or ``"context"``: a weight for each cell that the image alone decides.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``.
        alpha: α > 0.
        closeness: 𝒦, such as ``"tsallis:1.5"``; None is Kullback and Leibler's. Hard attention takes no other, since
            every cell has to have a chance to be drawn.
        gate: Whether there is a β; else it is 1.
        baseline_decay: How slowly the expected reward of REINFORCE changes, in [0, 1).
        dropout: Probability in [0, 1) with which elements of words and of what the head reads are dropped.

    Attributes:
        templates: The network that makes cells.
        preference: u of the cells.
        decoder: The LSTM over embedded words.
        evidence: From a state to z.
        inference: The block g.
        head: From s + βh to the scores of words.

    Raises:
        ProblemError: On an argument that cannot be used, with its value and what was expected.

    Reference:
        The papers' figure 2b and section 3.2, image captioning; Xu et al. 2015, sections 3.1 and 4.

    Example:
        >>> model = Captioner(vocabulary=30, image_size=16, width=8, depth=2, estimator="exact")
        >>> said = model(images=torch.zeros(2, 3, 16, 16), words=torch.tensor([[2, 7, 9], [2, 5, 0]]))
        >>> said["logits"].shape, said["weights"].shape
        (torch.Size([2, 3, 30]), torch.Size([2, 3, 16]))
    """

    def __init__(
        self,
        vocabulary: int,
        image_size: int = 64,
        channels: int = 3,
        width: int = 128,
        depth: int = 3,
        attention: str = "soft",
        gradient: str = "reinforce",
        preference: str = "uniform",
        estimator: str = "first_order",
        alpha: float = 1.0,
        closeness: str | None = None,
        gate: bool = True,
        baseline_decay: float = 0.9,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        check_sizes("Captioner", vocabulary=vocabulary, width=width)
        check_choice("Captioner", ATTENTIONS, attention=attention)
        check_choice("Captioner", GRADIENTS, gradient=gradient)
        check_choice("Captioner", PREFERENCES, preference=preference)
        Flag().check("gate of Captioner", gate, ProblemError)
        checked_argument("dropout", dropout, name="dropout of Captioner")
        if attention == "mean" and preference != "uniform":
            raise ProblemError(
                f"preference of Captioner is {preference!r} with attention 'mean', the plain mean of all cells; "
                "expected 'uniform', or attention 'soft' or 'hard'"
            )
        if attention == "hard" and closeness is not None:
            raise ProblemError(
                f"closeness of Captioner is {closeness!r} with attention 'hard'; expected None, since every cell has "
                "to have a chance to be drawn"
            )
        self._configuration = {
            "vocabulary": vocabulary,
            "image_size": image_size,
            "channels": channels,
            "width": width,
            "depth": depth,
            "attention": attention,
            "gradient": gradient,
            "preference": preference,
            "estimator": estimator,
            "alpha": alpha,
            "closeness": closeness,
            "gate": gate,
            "baseline_decay": baseline_decay,
            "dropout": dropout,
        }
        self.attention, self.gradient = attention, gradient
        self.templates = ImageCells(image_size, channels, width, depth)
        self.preference: AbstractPreference = (
            Uniform() if preference == "uniform" else Context(1, width, hidden=width)
        )
        self.embed = nn.Embedding(vocabulary, width, padding_idx=0)
        self.decoder = nn.LSTM(width, width, batch_first=True)
        self.inference = Inference(estimator=estimator, alpha=alpha, closeness=closeness)
        looks = attention != "mean"
        self.evidence = nn.Linear(width, width) if looks else None
        self.gate = nn.Linear(width, 1) if gate else None
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, vocabulary)
        draws = attention == "hard" and gradient == "reinforce"
        baseline = RewardBaseline(baseline_decay)
        self.baseline = baseline if draws else None

    def configuration(self) -> dict[str, Any]:
        """The arguments from which the model was built, as JSON can hold them."""
        return dict(self._configuration)

    def forward(
        self, images: Tensor, words: Tensor, targets: Tensor | None = None, draws: Tensor | None = None
    ) -> dict[str, Tensor]:
        r"""What the next word is after every word, all of them at once.

        Args:
            images: (B, channels, image_size, image_size), floating.
            words: Numbers of the words so far (B, m), the first the one that begins a caption; 0 is padding.
            targets: The words that come next (B, m), 0 where there is none. REINFORCE needs them in training, to know
                what its draws came to; nothing else reads them.
            draws: Numbers from 0 to below 1, uniformly, with which hard attention draws its cells in training (B, m).
                Default: from torch's global generator.

        Returns:
            ``logits`` (B, m, vocabulary) and ``weights``, p (B, m, cells). In training with hard attention also
            ``chosen``, the cells that were drawn (B, m), and with REINFORCE ``advantage``, by how much the reward
            :math:`\log P(w)` of each draw is above what was expected (B, m), without gradient.

        Raises:
            ProblemError: If a tensor has another shape or type, or targets are missing.
        """
        check_tensor("words", words, "(B, words)", dtypes=INTEGERS, dims=2)
        if words.shape[0] != images.shape[0]:
            raise ProblemError(
                f"words has shape {tuple(words.shape)} and images {tuple(images.shape)}; expected as many rows"
            )
        cells, log_preference = self.seen(images)
        states, _ = self.decoder(self.dropout(self.embed(words)))
        if draws is not None and draws.shape != words.shape:
            raise ProblemError(
                f"draws has shape {tuple(draws.shape)}; expected that of words, {tuple(words.shape)}"
            )
        said = self._said(states, cells, log_preference, words == 0, draws)
        if self.training and self.baseline is not None:
            if targets is None or targets.shape != words.shape:
                shape = None if targets is None else tuple(targets.shape)
                raise ProblemError(
                    f"targets is {'None' if shape is None else f'of shape {shape}'}; hard attention that learns by "
                    f"REINFORCE needs the words that come next in training, of shape {tuple(words.shape)}"
                )
            said["advantage"] = self._advantage(said["logits"], targets)
        return said

    def seen(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """The cells of images (B, n, width) and log u of each, (B, 1, 1, n); None is uniform."""
        cells = self.templates(images)
        count = cells.shape[1]
        inputs = AttentionInputs(
            len(cells), 1, 1, count, device=cells.device, dtype=cells.dtype, key_inputs=cells, query_offset=0
        )
        return cells, self.preference(inputs)

    def weights(
        self, states: Tensor, cells: Tensor, log_preference: Tensor | None, padding: Tensor | None = None
    ) -> Tensor:
        """The weights p of every state, (B, m, n).

        Args:
            states: Of the decoder (B, m, width).
            cells: (B, n, width).
            log_preference: As ``seen`` has it.
            padding: True where there is no word, bool (B, m), for audits.
        """
        if self.evidence is None:
            return cells.new_full((*states.shape[:2], cells.shape[1]), 1 / cells.shape[1])
        templates = cells.unsqueeze(1)
        found = self.inference(
            templates,
            templates,
            self.evidence(states).unsqueeze(1),
            log_preference,
            scale=cells.shape[-1] ** -0.5,
            query_padding=padding,
            need_weights=True,
        )
        assert found.weights is not None  # noqa: S101 - they were asked for
        return found.weights.squeeze(1)

    def _said(
        self,
        states: Tensor,
        cells: Tensor,
        log_preference: Tensor | None,
        padding: Tensor | None = None,
        draws: Tensor | None = None,
    ) -> dict[str, Tensor]:
        weights = self.weights(states, cells, log_preference, padding)
        said = {"weights": weights}
        taken = weights
        if self.attention == "hard":
            chosen = _drawn(weights, draws) if self.training else weights.argmax(-1)
            taken = nn.functional.one_hot(chosen, weights.shape[-1]).to(weights.dtype)
            if self.training:
                said["chosen"] = chosen
                if self.gradient == "straight_through":
                    taken = taken + weights - weights.detach()
        inferred = taken.to(cells.dtype) @ cells
        if self.gate is not None:
            inferred = self.gate(states).sigmoid() * inferred
        said["logits"] = self.head(self.dropout(states + inferred))
        return said

    def _advantage(self, logits: Tensor, targets: Tensor) -> Tensor:
        assert self.baseline is not None  # noqa: S101 - asked by forward
        likely = logits.detach().float() if logits.dtype != torch.float64 else logits.detach()
        rewards = likely.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        real = targets != 0
        return (rewards - self.baseline(rewards[real])).masked_fill(~real, 0.0)

    @torch.no_grad()
    def captions(
        self,
        images: Tensor,
        *,
        begin: int,
        end: int,
        longest: int,
        never: Sequence[int] = (0,),
        beam: int = 1,
        length_power: float = 1.0,
    ) -> list[Decoded]:
        """What is said of images, in evaluation mode.

        Args:
            images: As for ``forward``.
            begin: The word that begins a caption.
            end: The word that ends one.
            longest: How many words there are at most, the end among them.
            never: Words that are not said, such as padding.
            beam: Width of the beam; 1 is greedy.
            length_power: See :func:`fenchel.models.decoding.beam_search`.

        Returns:
            One for each image.
        """
        was_training = self.training
        self.eval()
        try:
            cells, log_preference = self.seen(images)
            rows, count = cells.shape[:2]
            believed = cells.new_zeros(1, 1, 1, 1) if log_preference is None else log_preference
            believed = believed.expand(rows, 1, 1, count)[:, 0, 0]
            idle = cells.new_zeros(rows, cells.shape[-1])
            return beam_search(
                partial(self._step, never=list(never)),
                (idle, idle, cells, believed),
                begin=begin,
                end=end,
                longest=longest,
                width=beam,
                length_power=length_power,
            )
        finally:
            self.train(was_training)

    def _step(
        self, last: Tensor, state: tuple[Tensor, ...], never: list[int]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        hidden, memory, cells, believed = state
        states, (hidden, memory) = self.decoder(
            self.embed(last).unsqueeze(1), (hidden.unsqueeze(0), memory.unsqueeze(0))
        )
        said = self._said(states, cells, believed[:, None, None])
        said["logits"][..., never] = -torch.inf
        return said["logits"][:, 0].log_softmax(-1), (hidden[0], memory[0], cells, believed)


@torch.no_grad()
def _drawn(weights: Tensor, draws: Tensor | None) -> Tensor:
    """A cell of each row of p: the first whose weight, with those of all before it, is more than what was drawn."""
    below = weights.double().cumsum(-1)
    drawn = torch.rand(weights.shape[:-1], device=weights.device) if draws is None else draws
    reached = (drawn.unsqueeze(-1).double() * below[..., -1:] < below).to(torch.uint8)
    return reached.argmax(-1)
