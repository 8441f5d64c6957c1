"""The model of filling in blanks, with the parts of figure 1 as its attributes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments.tensor import INTEGERS, check_flags, check_tensor, checked_argument
from fenchel.closeness.named import closeness_name, closeness_named
from fenchel.errors import ProblemError
from fenchel.models.cloze.embeddings import ClozeEmbeddings
from fenchel.models.cloze.head import WordHead
from fenchel.models.cloze.layer import FeedForward, TransformationLayer
from fenchel.models.cloze.places import PlacedInputs, RelativePlace
from fenchel.models.inference import Inference
from fenchel.nn import MultiheadAttention
from fenchel.nn.attending import KeyProjection
from fenchel.nn.preference import Additive, Causal, KeyPadding
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.sizes import check_positive, check_sizes

__all__ = ["Cloze"]

_NAMES = {
    "last": ("paper", "standard"),
    "masked": ("padding", "places"),
    "preference": ("uniform", "relative"),
    "layer_preference": ("uniform", "relative"),
    "score": ("dot", "additive"),
}
_OWNER = "Cloze"
_SPREAD = 0.02


class Cloze(nn.Module):
    r"""Infers what stands in a blank from the words around it.

    Transformation layers make x of the words. For a blank k the templates are :math:`t_i = V x_i`, the preference u
    weighs them by how far they are (equation (17)), and the evidence is a linear map :math:`z = f_{\mathrm{evd}}(x_k)`:

    .. math:: p = \arg\min_p \tfrac\alpha2\lVert\mu + z - \mathbb{E}_p[t]\rVert^2 + \mathcal{K}(p, u), \qquad
              y_k = f_{\mathrm{out}}(\mathrm{norm}(x_k + \mathbb{E}_p[V x]))

    The parts are attributes, any of which can be exchanged: ``templates``, ``preference``, ``evidence``, ``inference``
    (g) and ``head`` (:math:`f_{\mathrm{out}}`); before them come ``embeddings`` and ``layers``. Every head has its own
    slice of the width, and templates are divided by :math:`\sqrt d`, d the width of a head.

    Args:
        vocabulary: How many numbers words have; 0 is padding.
        width: Of the embeddings; divisible by ``heads``.
        depth: How many layers attend; the last of them infers.
        heads: Of every layer.
        mlp_width: Of the hidden layer of feed-forward networks; None is four times the width.
        dropout: Probability in [0, 1) of dropping an element of the embeddings and of what is added to a sum.
        longest: How many places there are.
        segments: How many segments there are.
        languages: How many languages have embeddings; 0 for none.
        classes: How many classes whole rows have, told from what is inferred for their first place, or if ``causal``
            for their last; 0 for none.
        mask: The number of ``[MASK]``; needed where ``masked`` is ``"places"``.
        last: ``"paper"``, whose templates are the values too, and whose head follows at once; or ``"standard"``, a
            layer of BERT like the others, with values, an output map and a feed-forward network of its own.
        masked: What equation (17) gives no weight: ``"padding"`` alone, or the ``"places"`` of ``[MASK]`` too.
        preference: u of the last layer: ``"uniform"``, or ``"relative"``, a learned weight for every distance between
            ``positions``, which may begin again in a second sentence.
        layer_preference: u of the layers before, likewise, but for distances in the row: they tell the words of one
            sentence from those of the other by it, whatever the positions are.
        causal: Whether a place sees nothing that comes after it.
        score: ``"dot"``; or ``"additive"``, a preference that looks at both places, with no evidence beside it.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``, in every layer; an additive score has no
            evidence to estimate from, and takes no other than the first.
        alpha: α > 0 of every layer.
        closeness: 𝒦 of every layer by name, such as ``"tsallis:1.5"``; None is Kullback and Leibler's.
        norm_eps: Of the norms.

    Raises:
        ProblemError: On an argument that cannot be used, with its value and what was expected.

    Reference:
        The papers' section 3.2, figure 2c and equation (17); Devlin et al. 2019, BERT.

    Example:
        >>> model = Cloze(vocabulary=30, width=8, depth=2, heads=2, longest=16, estimator="exact")
        >>> numbers = torch.tensor([[2, 9, 4, 7, 3], [2, 4, 3, 0, 0]])
        >>> model(numbers, places=numbers == 4)["words"].shape
        torch.Size([2, 1, 30])
    """

    def __init__(
        self,
        vocabulary: int,
        width: int = 128,
        depth: int = 3,
        heads: int = 4,
        mlp_width: int | None = None,
        dropout: float = 0.1,
        longest: int = 128,
        segments: int = 2,
        languages: int = 0,
        classes: int = 0,
        mask: int | None = None,
        last: str = "paper",
        masked: str = "padding",
        preference: str = "relative",
        layer_preference: str = "uniform",
        causal: bool = False,
        score: str = "dot",
        estimator: str = "first_order",
        alpha: float = 1.0,
        closeness: str | None = None,
        norm_eps: float = 1e-12,
    ) -> None:
        super().__init__()
        given = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        self._configuration: dict[str, Any] = given | {"closeness": closeness_name(closeness)}
        self._check()
        mlp_width = self._configuration["mlp_width"] = 4 * width if mlp_width is None else mlp_width
        sizes = (mlp_width, dropout, norm_eps)
        self.embeddings = ClozeEmbeddings(vocabulary, width, longest, segments, languages, dropout, norm_eps)
        self.layers = nn.ModuleList(
            TransformationLayer(
                MultiheadAttention(
                    width,
                    heads,
                    batch_first=True,
                    preference=self._preference(layer_preference),
                    estimator=estimator,
                    alpha=alpha,
                    closeness=closeness_named(self._configuration["closeness"]),
                ),
                *sizes,
            )
            for _ in range(depth - 1)
        )
        standard = last == "standard"
        self.templates: nn.Module = nn.Linear(width, width)
        self.values: nn.Module | None = nn.Linear(width, width) if standard else None
        self.preference: nn.Module = self._product(
            KeyPadding(),
            self._preference(preference),
            Additive(heads, width) if score == "additive" else None,
        )
        self.evidence: nn.Module | None = nn.Linear(width, width) if score == "dot" else None
        self.inference = Inference(
            heads, estimator=estimator, alpha=alpha, closeness=self._configuration["closeness"]
        )
        self.output = nn.Linear(width, width) if standard else nn.Identity()
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.dropout = nn.Dropout(dropout)
        self.feed_forward = FeedForward(width, *sizes) if standard else nn.Identity()
        self.head: nn.Module = WordHead(width, vocabulary, norm_eps)
        self.pooler = nn.Linear(width, width) if classes else None
        self.classify = nn.Linear(width, classes) if classes else None
        self.apply(_drawn)

    def _check(self) -> None:
        given = self._configuration
        sizes = ("vocabulary", "width", "depth", "heads", "longest", "segments", "mlp_width")
        check_sizes(
            _OWNER, **{name: given[name] for name in sizes if name != "mlp_width" or given[name] is not None}
        )
        check_positive(_OWNER, alpha=given["alpha"], norm_eps=given["norm_eps"])
        check_flags(causal=given["causal"])
        checked_argument("dropout", given["dropout"], name=f"dropout of {_OWNER}")
        checked_argument("estimator", given["estimator"], name=f"estimator of {_OWNER}")
        for name in ("languages", "classes"):
            checked_argument("place", given[name], name=f"{name} of {_OWNER}")
        for name, known in _NAMES.items():
            if given[name] not in known:
                raise ProblemError(
                    f"{name} of {_OWNER} is {given[name]!r}; expected one of {', '.join(known)}"
                )
        if given["width"] % given["heads"]:
            raise ProblemError(
                f"heads of {_OWNER} is {given['heads']} and width {given['width']}; heads must divide the width"
            )
        if given["masked"] == "places" and given["mask"] is None:
            raise ProblemError(
                f"masked of {_OWNER} is 'places' and mask is None; expected the number of [MASK]"
            )
        if given["score"] == "additive" and given["estimator"] != "first_order":
            raise ProblemError(
                f"estimator of {_OWNER} is {given['estimator']!r} and score is 'additive', which is all preference: "
                "there is no evidence to estimate from, and all estimators agree. Use 'first_order'"
            )

    def _preference(self, name: str) -> AbstractPreference | None:
        given = self._configuration
        return self._product(
            RelativePlace(given["heads"]) if name == "relative" else None,
            Causal() if given["causal"] else None,
        )

    @staticmethod
    def _product(*parts: AbstractPreference | None) -> Any:
        found: AbstractPreference | None = None
        for part in parts:
            if part is not None:
                found = part if found is None else found * part
        return found

    def configuration(self) -> dict[str, Any]:
        """The arguments from which the model was built, as JSON can hold them."""
        return dict(self._configuration)

    def forward(
        self,
        numbers: Tensor,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        languages: Tensor | None = None,
        places: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """What may stand in places, and the classes of rows.

        Args:
            numbers: Of the words (B, n), integers; 0 is padding.
            segments: Of each (B, n); None is 0 everywhere.
            positions: Of each (B, n); None counts from 0.
            languages: Of each (B, n); None is 0 everywhere.
            places: Those asked for, bool (B, n); None is all of them.

        Returns:
            ``words``, logits (B, m, vocabulary) of the places asked for, in order, zeros after those of rows that have
            fewer than m; and ``classes``, logits (B, classes), where there are any.

        Raises:
            ProblemError: If the numbers are no matrix of integers, or wider than there are places.
        """
        self._check_numbers(numbers)
        tokens = self.transformed(numbers, segments, positions, languages)
        inferred = self.inferred(numbers, tokens, positions).transpose(1, 2).flatten(2)
        found: dict[str, Tensor] = {}
        if self.classify is not None and self.pooler is not None:
            read = self._read_for_classes(numbers)
            state = self._state(tokens[read], inferred[read])
            found["classes"] = self.classify(self.dropout(torch.tanh(self.pooler(state))))
        if places is not None:
            tokens, inferred = tokens[places], inferred[places]
        words = self.head(self._state(tokens, inferred), self.embeddings.word.weight)
        found["words"] = words if places is None else _by_row(words, places)
        return found

    def _read_for_classes(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """The first place of every row; where places see nothing after them, the last word."""
        rows = torch.arange(len(numbers), device=numbers.device)
        if not self._configuration["causal"]:
            return rows, torch.zeros_like(rows)
        places = torch.arange(numbers.shape[1], device=numbers.device)
        return rows, (places * (numbers != 0)).amax(1)

    def _state(self, tokens: Tensor, inferred: Tensor) -> Tensor:
        """What was there and what was inferred, summed and normed."""
        return self.feed_forward(self.norm(tokens + self.dropout(self.output(inferred))))

    def transformed(
        self,
        numbers: Tensor,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        languages: Tensor | None = None,
    ) -> Tensor:
        """What the transformation layers make of the words, x (B, n, width); arguments are those of :meth:`forward`."""
        tokens = self.embeddings(numbers, segments, positions, languages)
        padding = numbers == 0
        for layer in self.layers:
            tokens = layer(tokens, padding)
        return tokens

    def inferred(self, numbers: Tensor, tokens: Tensor, positions: Tensor | None = None, **asked: Any) -> Any:
        """What the last layer infers for every place, (B, heads, n, width / heads), before the sum.

        Args:
            numbers: Of the words (B, n).
            tokens: x, what :meth:`transformed` gives (B, n, width).
            positions: Of each (B, n), between which the preference takes distances; None counts from 0.
            **asked: ``need_weights`` or ``need_certificate``, as :class:`Inference` takes them; with one of them its
                whole answer is returned.
        """
        heads = self._configuration["heads"]
        templates = self._in_heads(self.templates(tokens))
        values = templates if self.values is None else self._in_heads(self.values(tokens))
        evidence = torch.zeros_like(templates)
        if self.evidence is not None:
            evidence = self._in_heads(self.evidence(tokens))
        padding = numbers == 0
        hidden = padding
        if self._configuration["masked"] == "places":
            hidden = padding | (numbers == self._configuration["mask"])
        inputs = PlacedInputs(
            numbers.shape[0],
            heads,
            numbers.shape[1],
            numbers.shape[1],
            device=tokens.device,
            dtype=templates.dtype,
            query_inputs=tokens,
            key_inputs=tokens,
            key_padding=hidden,
            places=positions,
        )
        answer = self.inference(
            templates,
            values,
            evidence,
            self.preference(inputs),
            scale=templates.shape[-1] ** -0.5,
            projection=self._projection(tokens),
            key_padding=padding,
            asks_itself=True,
            **asked,
        )
        return answer if asked else answer.output

    def _in_heads(self, tokens: Tensor) -> Tensor:
        return tokens.unflatten(-1, (self._configuration["heads"], -1)).transpose(1, 2)

    def _projection(self, tokens: Tensor) -> KeyProjection | None:
        """For audits, where the templates come from; None where another module than a linear one makes them."""
        if not isinstance(self.templates, nn.Linear):
            return None
        heads, bias = self._configuration["heads"], self.templates.bias
        return KeyProjection(
            tokens,
            self.templates.weight.unflatten(0, (heads, -1)),
            None if bias is None else bias.unflatten(0, (heads, -1)),
        )

    def _check_numbers(self, numbers: Tensor) -> None:
        check_tensor("numbers", numbers, "(B, n), numbers of words", dims=2, dtypes=INTEGERS)
        longest = self._configuration["longest"]
        if numbers.shape[1] > longest:
            raise ProblemError(
                f"numbers has shape {tuple(numbers.shape)}; expected at most {longest} places a row"
            )


def _by_row(words: Tensor, places: Tensor) -> Tensor:
    """What was found for places (k, ...) side by side in their rows (B, m, ...)."""
    counts = places.sum(1)
    most = int(counts.max()) if len(counts) else 0
    asked = torch.arange(most, device=places.device) < counts.unsqueeze(1)
    found = words.new_zeros(len(places), most, words.shape[-1])
    found[asked] = words
    return found


def _drawn(module: nn.Module) -> None:
    """BERT's initial weights; those of preferences are their own."""
    if isinstance(module, RelativePlace):
        module.reset_parameters()
        return
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=_SPREAD)
    if isinstance(module, nn.MultiheadAttention):
        for weight in (module.in_proj_weight, module.out_proj.weight):
            nn.init.normal_(weight, std=_SPREAD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()
