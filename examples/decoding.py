"""What the translator and the captioner share: pieces of words, attention to states, one word after another."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import accelerate
import torch
from sacrebleu.metrics.bleu import BLEU
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional

from common import OPTIONS, write
from fenchel import Tsallis
from fenchel.errors import InputError
from fenchel.nn.inference import AttendingLayer, LayerCall, Problem
from task import Options, option

State = tuple[Tensor, ...]
Step = Callable[[Tensor, State], tuple[Tensor, State]]
PAD, UNKNOWN, BEGIN, END = range(4)
ESTIMATORS = ("first_order", "second_order", "exact")


def kept_tokenizer(
    options: Options, name: str, texts: Sequence[str], size: int, *, lower: bool = False
) -> Tokenizer:
    """The tokenizer of the run in ``--out``; for a new run one is learned, by byte pairs, and kept there.

    Args:
        options: Of the run.
        name: Of the file, without its ending.
        texts: What is trained on.
        size: How many pieces it knows at most.
        lower: Whether capitals are made small.
    """
    folder = Path(options.out)
    file = folder / f"{name}.json"
    if (folder / OPTIONS).is_file() and not options.overwrite:
        return Tokenizer.from_file(str(file))
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), *[normalizers.Lowercase()] * lower])
    split = [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation("isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.Metaspace()
    special = ["[PAD]", "[UNK]", "[BOS]", "[EOS]"]
    known: Any = {"vocab_size": size, "min_frequency": 2, "special_tokens": special}
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(**known, show_progress=False))
    if options.out and accelerate.PartialState().is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        write(file, tokenizer.to_str())
    return tokenizer


def piece_names(tokenizer: Tokenizer, numbers: Tensor) -> list[list[str]]:
    """The texts of pieces (B, n), without padding."""
    return [[str(tokenizer.id_to_token(one)) for one in row[row != PAD].tolist()] for row in numbers]


def surprise(scores: Tensor, labels: Tensor) -> Tensor:
    """-log P of each text (B,), from scores (B, m, pieces) and what is right (B, m), 0 where there is nothing."""
    return functional.cross_entropy(scores.mT, labels, ignore_index=PAD, reduction="none").sum(1)


def measures(labels: Tensor) -> dict[str, Callable[[Tensor], Tensor]]:
    """What swaps measure of the scores (B, m, pieces) of some texts: cross-entropy and share of right pieces."""
    counts = (labels != PAD).sum(1)
    return {
        "loss": lambda scores: surprise(scores.cpu().float(), labels) / counts,
        "score": lambda scores: ((scores.cpu().argmax(-1) == labels) & (labels != PAD)).sum(1) / counts,
    }


class Attention(AttendingLayer, nn.Module):
    r"""The block g of the papers' figure 1: attention without projections, with one head.

    .. math:: p = \arg\min_p \tfrac\alpha2\lVert\mu + z - \mathbb{E}_p[t]\rVert^2 + \mathcal{K}(p, u), \qquad
              h = \mathbb{E}_p[v]

    Audits, swaps and :func:`fenchel.nn.use_estimator` find it in a model as they find the layers of ``fenchel.nn``.

    Args:
        estimator: ``first_order``, ``second_order`` or ``exact``.
        alpha: α > 0, the reliability of the evidence.
        order: Of Tsallis' closeness, above 1; 1 is Kullback and Leibler's, softmax.
    """

    num_heads = 1

    def __init__(self, estimator: str = "first_order", alpha: float = 1.0, order: float = 1.0) -> None:
        super().__init__()
        self.estimator, self.alpha = estimator, alpha
        self.effective_closeness = None if order == 1 else Tsallis(order)

    def forward(
        self, states: Tensor, z: Tensor, log_u: Tensor, *, scale: float = 1.0, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """The means h (B, m, d), and the weights (B, m, n) if they are needed.

        Args:
            states: The values, and before their scale the templates, (B, n, d).
            z: The evidence, (B, m, d).
            log_u: Of the preference u; or bool with True = attend, broadcastable to (B, 1, m, n).
            scale: Of the templates.
            need_weights: Whether to return them.
        """
        templates = states.unsqueeze(1)
        evidence = z.to(states.dtype).unsqueeze(1)
        closeness = self.effective_closeness
        problem = Problem(evidence, templates, templates, self.alpha, scale, closeness=closeness)
        call = LayerCall(problem, log_u)
        result = self.infer(call, dropout=0.0, need_weights=need_weights, need_certificate=False)
        return result.output.squeeze(1), None if result.weights is None else result.weights.squeeze(1)

    @contextlib.contextmanager
    def steps(self) -> Iterator[None]:
        """Calls inside are queries of one problem, one after another; an audit sees them once, side by side."""
        captured, calls = vars(self).pop("infer", None), list[Any]()
        if captured is not None:
            own = self.infer

            def kept(call: LayerCall, **options: Any) -> Any:
                calls.append(call)
                return own(call, **options)

            self.infer = kept
        try:
            yield
        finally:
            if captured is not None:
                self.infer = captured
        if captured is not None and calls:
            z = torch.cat([call.problem.evidence for call in calls], 2)
            shape = (len(z), 1, 1, calls[0].problem.templates.shape[2])
            u = torch.cat([call.log_preference.expand(shape) for call in calls], 2)
            whole = LayerCall(replace(calls[0].problem, evidence=z), u)
            captured(whole, dropout=0.0, need_weights=False, need_certificate=False)


def weights_of(model: nn.Module, **inputs: Tensor) -> Tensor:
    """The weights (B, m, n) of the last attention layer of a model in a call, of all its queries in turn.

    Raises:
        InputError: If the model has no attention.
    """
    layers: list[Any] = [one for one in model.modules() if isinstance(one, AttendingLayer)]
    if not layers:
        raise InputError("this model has no attention, so it looks nowhere. Leave --heatmap out.")
    result: list[Tensor] = []

    def ask(_: nn.Module, given: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return given, {**named, "need_weights": True}

    asking = layers[-1].register_forward_pre_hook(ask, with_kwargs=True)
    telling = layers[-1].register_forward_hook(lambda _, given, answer: result.append(answer[1]))
    with torch.no_grad(), asking, telling:
        model(**inputs)
    return torch.cat(result, 1)


def bleu(said: Sequence[str], references: Sequence[Sequence[str]], *, lower: bool = False) -> dict[str, Any]:
    """BLEU of plain text by sacrebleu, with its signature; one reference a text in each list."""
    metric = BLEU(lowercase=lower)
    score = metric.corpus_score(said, references).score
    return {"bleu": score, "signature": str(metric.get_signature())}


@dataclass
class SearchOptions:
    """Options of ``use``, for both."""

    beam: int = option(1, "how many beginnings are kept; 1: greedy")
    length_power: float = option(1.0, "beams are compared by log P / length^power")
    temperature: float = option(0.0, "above 0 words are drawn")
    seed: int = option(0, "of what is drawn")

    def arguments(self) -> dict[str, Any]:
        """Those of :func:`search`; torch's generator is seeded.

        Raises:
            InputError: If they exclude each other.
        """
        if self.beam < 1 or self.temperature < 0 or (self.temperature > 0 and self.beam > 1):
            raise InputError(
                f"beam is {self.beam} and temperature {self.temperature}; expected a beam of at least 1, and of 1 with "
                "a temperature above 0."
            )
        torch.manual_seed(self.seed)
        return {name: getattr(self, name) for name in ("beam", "temperature", "length_power")}


class Said(NamedTuple):
    """What a search found for a row.

    Attributes:
        words: Numbers, without the one that ends them.
        log_probability: Of the words and of ending there, in nats.
    """

    words: list[int]
    log_probability: float


@torch.no_grad()
def search(
    step: Step, state: State, most: Tensor, beam: int = 1, temperature: float = 0.0, length_power: float = 1.0
) -> list[Said]:
    r"""Words one after another, of all rows at once: greedily, by a beam, or drawn.

    Each step keeps the ``beam`` likeliest beginnings that have not ended. What ends among the ``beam`` likeliest
    continuations is a candidate; a row is done when it has as many, and its answer is the candidate with the largest
    :math:`\log P / l^{\text{power}}`. A beam of 1 is greedy.

    Args:
        step: From the words so far (R, t) and the state to scores of the next word (R, V) and the state after it.
        state: Before the first word; all tensors have the rows first.
        most: Words of each row, its end among them (rows,).
        beam: How many beginnings are kept.
        temperature: Above 0 words are drawn, from probabilities with exponents 1/temperature; the beam is 1 then.
        length_power: 0 compares probabilities, 1 their geometric means a word.
    """
    rows, device = len(most), most.device
    state = tuple(one.repeat_interleave(beam, 0) for one in state) if beam > 1 else state
    words = torch.full((rows * beam, 1), BEGIN, device=device)
    likely = torch.full((rows, beam), -torch.inf, dtype=torch.float64, device=device)
    likely[:, 0] = 0
    result: list[list[Said]] = [[] for _ in range(rows)]
    never = torch.tensor([PAD, UNKNOWN, BEGIN], device=device)
    first = beam * torch.arange(rows, device=device).unsqueeze(1)
    for place in range(int(most.max())):
        scores, state = step(words, state)
        scores = scores.index_fill(-1, never, -torch.inf)
        others = torch.arange(scores.shape[-1], device=device) != END
        over = (most <= place + 1).repeat_interleave(beam).unsqueeze(1)
        scores = scores.masked_fill(over & others, -torch.inf)
        each = likely.unsqueeze(-1) + scores.double().log_softmax(-1).view(rows, beam, -1)
        if temperature > 0:
            chosen = (scores / temperature).softmax(-1).multinomial(1)
            top = each.squeeze(1).gather(1, chosen)
        else:
            top, chosen = each.flatten(1).topk(min(2 * beam, each[0].numel()), dim=1)
        before, word = chosen // each.shape[-1], chosen % each.shape[-1]
        ends = word == END
        for row, rank in (ends[:, :beam] & top[:, :beam].isfinite()).nonzero().tolist():
            if len(result[row]) < beam:
                said = words[row * beam + int(before[row, rank]), 1:].tolist()
                result[row].append(Said(said, float(top[row, rank])))
        if all(len(candidates) >= beam for candidates in result):
            break
        likely, order = top.masked_fill(ends, -torch.inf).topk(beam, dim=1)
        kept = (first + before.gather(1, order)).flatten()
        words = torch.cat((words[kept], word.gather(1, order).view(-1, 1)), 1)
        state = tuple(one[kept] for one in state) if beam > 1 else state
    return [
        max(candidates, key=lambda one: one.log_probability / (len(one.words) + 1) ** length_power)
        for candidates in result
    ]
