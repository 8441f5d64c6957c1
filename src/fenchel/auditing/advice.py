"""What the patterns of an audit suggest, and the command to run next."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fenchel.auditing.head_pattern import GROUPS, LARGE_SHARE, STILL, HeadPattern
from fenchel.auditing.heads import AttentionModule, HeadKey, Kind
from fenchel.drawing import percent

__all__ = [
    "FROM_PYTHON",
    "READY_MADE",
    "Suggestion",
    "is_loaded",
    "python_words",
    "source_words",
    "suggestions",
]

LEAST_SENTENCES = 3
"""Of which a swap of a model without a language-model head can rank the similarities."""

MOST_HEADS = 3
"""Heads that the command of a pattern swaps: those in which most moves."""

READY_MADE = "ready-made model inputs"
FROM_PYTHON = frozenset({"Python strings", READY_MADE})
"""What the texts of a manifest are called that had no file."""

_KEYS = {
    "sinks": "the first token and special tokens such as [CLS] and [SEP]",
    "itself": "the query's own token",
    "neighbours": "the tokens next to the query",
    "punctuation": "punctuation",
}
_SHORT = {
    "sinks": "sinks",
    "itself": "the token itself",
    "neighbours": "neighbours",
    "punctuation": "punctuation",
}
_MEANING = {
    "leaves_sinks": "Attention puts more weight on a sink than inference would: a place to put weight when nothing "
    "else fits. If it is only that, exact inference there changes little of what the model computes; if it changes "
    "much, the sink carries something.",
    "reaches_sinks": "Here inference would lean on the sink more than attention does: the evidence for other tokens is "
    "weaker than attention takes it to be.",
    "leaves_itself": "These heads hold on to the query's own token more than inference would.",
    "reaches_itself": "Here inference would keep more of the query's own token than attention does.",
    "leaves_neighbours": "These heads read off positions, and inference, whose preference may know of none, would "
    "spread what they put on a token beside the query. If exact inference does harm there, positions are what these "
    "heads are for, and a preference that knows positions would say so openly.",
    "reaches_neighbours": "Here inference would look at the tokens beside the query more than attention does.",
    "leaves_punctuation": "Attention puts more weight on punctuation than inference would, as on a sink.",
    "reaches_punctuation": "Here inference would give punctuation more weight than attention does.",
    "among_the_rest": "Which words these heads read would change, and with it what they pass on: here exact inference "
    "is least likely to leave the model's output as it is.",
    "mixed": "No one place stands out: weight moves from and to several kinds of tokens.",
    "still": "Attention gives what inference would, to within what could matter. Exact inference would cost time and "
    "change next to nothing: leave these heads as they are.",
}


@dataclass(frozen=True)
class Suggestion:
    """One pattern, what it suggests and what to do.

    Attributes:
        pattern: Its name, see ``HeadPattern.names``.
        title: The same in words.
        heads: The heads that show it, those in which most moves first.
        found: What was found, a sentence with its numbers.
        meaning: What it suggests.
        command: What to run next, for a POSIX shell or, where the text had no file, for Python; None where there is
            nothing to run.
    """

    pattern: str
    title: str
    heads: tuple[HeadKey, ...]
    found: str
    meaning: str
    command: str | None

    def to_json(self) -> dict[str, Any]:
        """JSON values only."""
        return {**asdict(self), "heads": [key._asdict() for key in self.heads]}


def suggestions(
    patterns: Sequence[HeadPattern],
    manifest: Mapping[str, Any],
    modules: Mapping[tuple[Kind, int], AttentionModule],
) -> list[Suggestion]:
    """What the patterns of an audit suggest, that of most moved weight first and still heads last.

    Args:
        patterns: What moves in every head.
        manifest: The audit's.
        modules: The attention module of every layer, by whose number a swap knows it.

    Returns:
        One for every pattern that some head shows.
    """
    by_name: dict[str, list[HeadPattern]] = {}
    for pattern in sorted(patterns, key=lambda pattern: (-pattern.moved, patterns.index(pattern))):
        for name in pattern.names:
            by_name.setdefault(name, []).append(pattern)
    order = sorted(by_name, key=lambda name: (name == "still", -sum(p.moved for p in by_name[name])))
    return [
        Suggestion(
            pattern=name,
            title=_said(_title(name), manifest),
            heads=tuple(pattern.key for pattern in by_name[name]),
            found=_said(_found(name, by_name[name], len(patterns)), manifest),
            meaning=_said(_MEANING[name], manifest),
            command=None if name == "still" else _command(by_name[name], manifest, modules, name),
        )
        for name in order
    ]


def is_loaded(manifest: Mapping[str, Any]) -> bool:
    """Whether a model was loaded already and has no name by which to load it again."""
    return manifest.get("model") == manifest.get("model_class") and manifest.get("model") is not None


def python_words(manifest: Mapping[str, Any], ready_made: str) -> str:
    """The first arguments of a call from Python: the model, what makes its input, and what was read.

    Args:
        manifest: An audit's.
        ready_made: What inputs are called that need nothing to make them.

    Example:
        >>> python_words({"model": "demo", "texts": "Python strings"}, "inputs")
        "'demo', None, texts"
        >>> python_words({"model": "ViT", "model_class": "ViT", "texts": READY_MADE}, "inputs")
        'model, None, inputs'
    """
    source, images = manifest.get("texts"), manifest.get("reads") == "images"
    model = "model" if is_loaded(manifest) else repr(str(manifest.get("model")))
    maker = "processor" if images else "tokenizer"
    if source == READY_MADE or not is_loaded(manifest):
        maker = "None"
    read = ready_made if source == READY_MADE else "texts" if source in FROM_PYTHON else repr(str(source))
    return f"{model}, {maker}, {'images=' if images else ''}{read}"


def source_words(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """The words of a command that name what was read.

    Example:
        >>> source_words({"texts": "my text.txt"}), source_words({"loader": "examples/vision.py"})
        (('--text', 'my text.txt'), ('--loader', 'examples/vision.py'))
    """
    if manifest.get("loader") is not None:
        return ("--loader", str(manifest["loader"]))
    return (
        "--images" if manifest.get("reads") == "images" else "--text",
        str(manifest.get("texts") or "FILE"),
    )


def _said(text: str, manifest: Mapping[str, Any]) -> str:
    """A text about words, of patches where images were read."""
    if manifest.get("reads") != "images":
        return text
    return text.replace("ordinary words", "ordinary patches").replace("Which words", "Which patches")


def _title(name: str) -> str:
    special = {
        "still": "Next to nothing would move",
        "mixed": "Weight moves from and to many places",
        "among_the_rest": "Weight moves between ordinary words",
    }
    if name in special:
        return special[name]
    direction, _, group = name.partition("_")
    return f"Weight {direction} {_SHORT[group]}"


def _found(name: str, heads: Sequence[HeadPattern], total: int) -> str:
    where = f"In {len(heads)} of {total} heads" if total > 1 else "In this head"
    direction, _, group = name.partition("_")
    mean = _mean(heads, lambda pattern: pattern.moved)
    if name == "still":
        return f"{where} less than {percent(STILL)} of the weight would move."
    if group not in _KEYS:
        ends = ", from and to ordinary words for the most part" if name == "among_the_rest" else ""
        return f"{where} {percent(mean)} of the weight would move on average{ends}."
    attention, exact = (
        _mean(heads, lambda pattern, side=side: sum(getattr(pattern.classes[k], side) for k in GROUPS[group]))
        for side in ("attention", "exact")
    )
    return (
        f"{where} at least {percent(LARGE_SHARE)} of the weight that would move {direction} {_KEYS[group]}: they hold "
        f"{percent(attention)} of these heads' weight in attention and {percent(exact)} in the exact answer."
    )


def _mean(heads: Sequence[HeadPattern], of: Callable[[HeadPattern], float]) -> float:
    queries = sum(pattern.queries for pattern in heads)
    return sum(pattern.queries * of(pattern) for pattern in heads) / queries


def _command(
    heads: Sequence[HeadPattern],
    manifest: Mapping[str, Any],
    modules: Mapping[tuple[Kind, int], AttentionModule],
    name: str,
) -> str | None:
    """The swap of the heads in which most moves, one at a time."""
    source = manifest.get("texts")
    if manifest.get("even_so"):
        return None  # a swap infers under the model's own closeness
    modules = {site: module for site, module in modules.items() if module.number}
    known = [pattern.key for pattern in heads if (pattern.key.kind, pattern.key.layer) in modules]
    chosen = known[:MOST_HEADS]
    if not chosen or source is None:
        return None
    if manifest.get("embeds") and manifest.get("documents", LEAST_SENTENCES) < LEAST_SENTENCES:
        return None  # whose similarities have no ranking that a swap could change
    layers = sorted({modules[key.kind, key.layer].number for key in chosen})
    which = sorted({key.head for key in chosen})
    given = {
        option: manifest[option]
        for option in ("text_column", "target_column", "max_length", "max_tokens", "dtype")
        if manifest.get(option) is not None
    }
    revision = manifest.get("revision")
    if revision is not None and not str(revision).startswith("sha256:"):
        given["revision"] = revision
    model = str(manifest.get("model"))
    if is_loaded(manifest) or source in FROM_PYTHON:
        if is_loaded(manifest):
            given.pop("dtype", None)
        options = "".join(f", {option}={value!r}" for option, value in given.items() if option != "revision")
        first = python_words(manifest, "batches")
        return (
            f"fenchel.swap.swap({first}, per_head=True, layers={layers}, heads={which}{options}, "
            f"directory={'swap-' + name!r})"
        )
    words = ["fenchel", "swap", model, *source_words(manifest)]
    if manifest.get("whole_file"):
        words.append("--whole-file")
    for option, value in given.items():
        words += [f"--{option.replace('_', '-')}", str(value)]
    words += ["--per-head", "--layers", ",".join(map(str, layers)), "--heads", ",".join(map(str, which))]
    return shlex.join([*words, "--out", f"swap-{name.replace('_', '-')}"])
