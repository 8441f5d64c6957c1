"""Patterns of moved weight in heads, and commands to follow up on them."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fenchel.auditing.heads import READS, HeadKey, Modules, in_units
from fenchel.auditing.weight_moves import KEY_CLASSES, MOVES
from fenchel.drawing import percent, plain
from fenchel.io.documents import has_columns

if TYPE_CHECKING:
    from fenchel.auditing.statistics import AuditStatistics

# Groups of classes of keys in the names of patterns.
GROUPS: dict[str, tuple[str, ...]] = {
    "sinks": ("first", "special"),
    "itself": ("itself",),
    "neighbours": ("neighbour",),
    "punctuation": ("punctuation",),
    "rest": ("rest",),
}

# Mean total variation below which a head is ``still``: too small to name a pattern.
STILL = 0.02

# Least share of the moved weight that leaves, or reaches, a group for a pattern to be named.
LARGE_SHARE = 0.4

MOST_NAMED = 8

_LEAST_NAMED = 1e-4  # of a query's weight


@dataclass(frozen=True)
class ClassMove:
    """Means over queries, as shares of a query's weight.

    Attributes:
        attention: Weight on keys of the class in the model.
        leaves: Weight that would leave them.
        reaches: Weight that would reach them.
    """

    attention: float
    leaves: float
    reaches: float

    @property
    def exact(self) -> float:
        """Weight on keys of the class in exact inference."""
        return self.attention - self.leaves + self.reaches


@dataclass(frozen=True)
class TokenMove:
    """Weight moved to a token less that from it, as the key that gains or loses most.

    Attributes:
        id: Its id in the vocabulary.
        token: Its text.
        net: Weight that it gains, as a share of all weight.
    """

    id: int
    token: str
    net: float


@dataclass(frozen=True)
class HeadPattern:
    """Weight that moves in one head between attention and exact inference.

    Attributes:
        key: The head.
        queries: Number of queries.
        moved: Mean total variation: the share of weight that would move.
        classes: Means over queries by class of key (``KEY_CLASSES``).
        too_much: Tokens that lose most, in descending order.
        too_little: Tokens that gain most.
    """

    key: HeadKey
    queries: int
    moved: float
    classes: Mapping[str, ClassMove]
    too_much: tuple[TokenMove, ...]
    too_little: tuple[TokenMove, ...]

    def share(self, group: str, direction: str) -> float:
        """Share of the moved weight that leaves or reaches (``direction``) a group of ``GROUPS``."""
        total = sum(getattr(move, direction) for move in self.classes.values())
        part = sum(getattr(self.classes[name], direction) for name in GROUPS[group])
        return part / total if total > 0 else 0.0

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the patterns of the head.

        ``still`` below ``STILL``; else ``leaves_X`` and ``reaches_X`` for every group X of ``GROUPS`` but the rest with
        at least ``LARGE_SHARE`` of the moved weight; ``among_the_rest`` where both ends are ordinary tokens for that
        share, and nothing else is; ``mixed`` where there is none.
        """
        if self.moved < STILL:
            return ("still",)
        result = [
            f"{direction}_{group}"
            for direction in ("leaves", "reaches")
            for group in GROUPS
            if group != "rest" and self.share(group, direction) >= LARGE_SHARE
        ]
        if not result and all(self.share("rest", side) >= LARGE_SHARE for side in ("leaves", "reaches")):
            result = ["among_the_rest"]
        return tuple(result or ["mixed"])


def head_patterns(statistics: AuditStatistics) -> list[HeadPattern]:
    """Patterns of all heads, ordered by kind, layer and number; empty if classes were not measured."""
    tokens: dict[HeadKey, list[tuple[int, float]]] = defaultdict(list)
    for kind, layer, head, *token in statistics.moved_tokens().iter_rows():
        tokens[HeadKey(kind, layer, head)].append(tuple(token))
    result = []
    for row in statistics.moves().iter_rows(named=True):
        key = HeadKey(row["kind"], row["layer"], row["head"])
        classes = {name: ClassMove(*(row[f"{move}_{name}"] for move in MOVES)) for name in KEY_CLASSES}
        # Either side sums to the total variation up to rounding.
        moved = sum(move.leaves + move.reaches for move in classes.values()) / 2
        named = _tokens(tokens[key], row["weight"], statistics.words)
        result.append(HeadPattern(key, row["queries"], moved, classes, *named))
    return result


def _tokens(
    tokens: list[tuple[int, float]], weight: float, words: Mapping[int, str]
) -> tuple[tuple[TokenMove, ...], tuple[TokenMove, ...]]:
    """Tokens with too much weight, and those with too little."""
    result = [TokenMove(number, words.get(number, str(number)), net / weight) for number, net in tokens]
    too_much = sorted((token for token in result if token.net < -_LEAST_NAMED), key=lambda token: token.net)
    too_little = sorted((token for token in result if token.net > _LEAST_NAMED), key=lambda token: -token.net)
    return tuple(too_much[:MOST_NAMED]), tuple(too_little[:MOST_NAMED])


# Minimum number of sentences for a swap to rank similarities.
LEAST_SENTENCES = 3

# Maximum number of heads that the command of a pattern swaps, those in which most moves.
MOST_HEADS = 3

READY_MADE = "ready-made model inputs"

# Values of ``texts`` in a manifest for texts without a file.
FROM_PYTHON = frozenset({"Python strings", READY_MADE})

_KEYS = {
    "sinks": "the first token and special tokens",
    "itself": "the query's own token",
    "neighbours": "the tokens next to the query",
    "punctuation": "punctuation",
}

_SHORT = {**_KEYS, "sinks": "sinks", "itself": "the token itself", "neighbours": "neighbours"}

# Title and meaning of every pattern.
_IN_WORDS: dict[str, tuple[str, str]] = {
    "still": (
        "Almost no weight moves",
        "Attention agrees with exact inference up to this share of the weight.",
    ),
    "mixed": (
        "Weight moves between several kinds of tokens",
        "No kind of token dominates: weight leaves and reaches several kinds.",
    ),
    "among_the_rest": (
        "Weight moves between other tokens",
        "Weight moves between tokens that are not sinks, punctuation or next to the query.",
    ),
    **{
        f"{direction}_{group}": (
            f"Weight {direction} {short}",
            f"{more[0].upper()}{more[1:]} puts more weight on {short} than {less} does.",
        )
        for direction, more, less in (
            ("leaves", "attention", "exact inference"),
            ("reaches", "exact inference", "attention"),
        )
        for group, short in _SHORT.items()
    },
}

_NOT_IMPORTANCE = (
    "An audit measures how far attention is from exact inference, not how important a head is: none of its measures "
    "reliably predicted the effect of removing heads."
)

_ABLATIONS = {"estimators": ["none"], "ablations": ["zero", "mean"]}


@dataclass(frozen=True)
class Suggestion:
    """A pattern, its meaning and a command that measures its effect.

    Attributes:
        pattern: Its name, see ``HeadPattern.names``.
        title: The name in words.
        heads: The heads with this pattern, in descending order of moved weight.
        found: The finding with its numbers, a sentence.
        meaning: The difference between attention and exact inference in this pattern.
        command: A swap that measures the effect of exact inference in these heads, for a POSIX shell or, for texts
            without a file, for Python; None if there is nothing to run, or the audit was of space ``input`` or another
            α than 1, which swaps do not support.
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


@dataclass(frozen=True)
class Importance:
    """How to measure which heads matter, which an audit does not.

    Attributes:
        said: The description in words.
        command: A swap that ablates the heads one by one, as in ``Suggestion``.
        passes: Number of passes of the text through the model.
    """

    said: str
    command: str | None
    passes: int


def importance(heads: Sequence[HeadKey], manifest: Mapping[str, Any], modules: Modules) -> Importance:
    """How to measure the importance of the heads of an audit.

    Args:
        heads: All audited heads.
        manifest: Manifest of the audit.
        modules: The attention module of every layer, with its number in swaps.
    """
    how: dict[str, Sequence[Any]] = {**_ABLATIONS}
    if manifest.get("layers") or manifest.get("heads"):
        how |= _numbers(heads, modules)
    command = _command(heads, manifest, modules, how, "which-heads")
    # Two ablations of each head, in all layers that share its module; the model, and its mean outputs.
    passes = 2 * len({(modules.get((key.kind, key.layer), key), key.head) for key in heads}) + 2
    if command is None:
        return Importance(_NOT_IMPORTANCE, None, passes)
    reads, by = manifest.get("reads") or "text", ""
    if _label_column(manifest):
        by = ", by the loss of the classifier (--label-column names the column of the classes)"
    elif manifest.get("embeds"):
        by = ", by its sentence embeddings, or with --label-column by the loss of a classifier"
    elif reads == "images":
        by = ", by its outputs, or with folders named by class or --label-column by the loss of a classifier"
    read = "this text" if reads == "text" else f"these {READS[reads]}s"
    # Of other inputs all queries are measured by default.
    audited = " (an audit with the default sample takes about two)" if reads == "text" else ""
    sentences = (
        f"{_NOT_IMPORTANCE} To measure importance, remove one head at a time: about {passes:,} passes of {read} "
        f"through the model{audited}{by}."
    )
    return Importance(sentences, command, passes)


def suggestions(
    patterns: Sequence[HeadPattern], manifest: Mapping[str, Any], modules: Modules
) -> list[Suggestion]:
    """The patterns of an audit with a swap for each, by descending moved weight and ``still`` last.

    Args:
        patterns: Patterns of all heads.
        manifest: Manifest of the audit.
        modules: The attention module of every layer, with its number in swaps.

    Returns:
        One for every pattern that occurs.
    """
    by_name: dict[str, list[HeadPattern]] = {}
    for pattern in sorted(patterns, key=lambda pattern: -pattern.moved):
        for name in pattern.names:
            by_name.setdefault(name, []).append(pattern)
    order = sorted(by_name, key=lambda name: (name == "still", -sum(p.moved for p in by_name[name])))
    return [
        Suggestion(
            pattern=name,
            title=in_units(_IN_WORDS[name][0], manifest),
            heads=tuple(pattern.key for pattern in by_name[name]),
            found=in_units(_found(name, by_name[name], len(patterns)), manifest),
            meaning=in_units(_IN_WORDS[name][1], manifest),
            command=None if name == "still" else _exact_command(by_name[name], manifest, modules, name),
        )
        for name in order
    ]


def is_loaded(manifest: Mapping[str, Any]) -> bool:
    """Whether the model was given as a module, without a name from which to load it."""
    return manifest.get("model") == manifest.get("model_class") and manifest.get("model") is not None


def recorded(manifest: Mapping[str, Any], options: Sequence[str]) -> dict[str, Any]:
    """The options of a manifest that are not None."""
    given = {option: manifest[option] for option in options if manifest.get(option) is not None}
    if str(given.get("revision", "")).startswith("sha256:"):
        del given["revision"]  # a digest of local files, not a revision on the hub
    return given


def python_call(
    function: str, manifest: Mapping[str, Any], options: Mapping[str, Any], *, ready_made: str
) -> str:
    """A call from Python with the model, its tokenizer and the texts of an audit.

    Args:
        function: The function that is called.
        manifest: The audit's.
        options: Further arguments, by name.
        ready_made: Name of inputs that need no tokenizer.

    Example:
        >>> manifest = {"model": "demo", "texts": "Python strings"}
        >>> python_call("fenchel.audit", manifest, {"alpha": 1.0}, ready_made="inputs")
        "fenchel.audit('demo', None, texts, alpha=1.0)"
        >>> manifest = {"model": "ViT", "model_class": "ViT", "texts": READY_MADE}
        >>> python_call("swap", manifest, {}, ready_made="inputs")
        'swap(model, None, inputs)'
    """
    source, images = manifest.get("texts"), manifest.get("reads") == "images"
    model = "model" if is_loaded(manifest) else repr(str(manifest.get("model")))
    maker = "processor" if images else "tokenizer"
    if source == READY_MADE or not is_loaded(manifest):
        maker = "None"
    read = ready_made if source == READY_MADE else "texts" if source in FROM_PYTHON else repr(str(source))
    written = "".join(f", {name}={value!r}" for name, value in options.items())
    return f"{function}({model}, {maker}, {'images=' if images else ''}{read}{written})"


def written_command(verb: str, manifest: Mapping[str, Any], options: Mapping[str, Any], out: str) -> str:
    """A command for a POSIX shell.

    Args:
        verb: Such as ``audit``.
        manifest: Manifest of the audit, with model and text.
        options: Further options by name; True for an option without a value, sequences are joined by commas.
        out: Folder of the results.
    """
    option, loader = "--images" if manifest.get("reads") == "images" else "--text", manifest.get("loader")
    source = (option, str(manifest.get("texts") or "FILE")) if loader is None else ("--loader", str(loader))
    words = ["fenchel", verb, str(manifest.get("model") or "MODEL"), *source]
    for name, value in options.items():
        words.append(f"--{name.replace('_', '-')}")
        if value is not True:
            words.append(",".join(map(str, value)) if isinstance(value, list | tuple) else plain(value))
    return shlex.join([*words, "--out", out])


def _found(name: str, heads: Sequence[HeadPattern], total: int) -> str:
    where = f"In {len(heads)} of {total} heads" if total > 1 else "In this head"
    direction, _, group = name.partition("_")
    mean = _mean(heads, lambda pattern: pattern.moved)
    if name == "still":
        return f"{where} less than {percent(STILL)} of the weight would move."
    if group not in _KEYS:
        others = ", mostly between other tokens (not first, special, punctuation or beside the query)"
        ends = others if name == "among_the_rest" else ""
        return f"{where} {percent(mean)} of the weight would move on average{ends}."
    attention, exact = (
        _mean(heads, lambda pattern, side=side: sum(getattr(pattern.classes[k], side) for k in GROUPS[group]))
        for side in ("attention", "exact")
    )
    these = "that head" if len(heads) == 1 else "these heads"
    return (
        f"{where} at least {percent(LARGE_SHARE)} of the weight that would move {direction} {_KEYS[group]}: these "
        f"tokens have {percent(attention)} of the weight of {these} in attention and {percent(exact)} in exact "
        "inference."
    )


def _mean(heads: Sequence[HeadPattern], of: Callable[[HeadPattern], float]) -> float:
    queries = sum(pattern.queries for pattern in heads)
    return sum(pattern.queries * of(pattern) for pattern in heads) / queries


def _exact_command(
    heads: Sequence[HeadPattern], manifest: Mapping[str, Any], modules: Modules, name: str
) -> str | None:
    """A swap of the heads with most moved weight, one at a time."""
    if manifest.get("space") == "input" or manifest.get("alpha", 1.0) != 1:
        return None
    known = [pattern.key for pattern in heads if _number(pattern.key, modules)][:MOST_HEADS]
    return _command(known, manifest, modules, _numbers(known, modules), f"swap-{name}")


def _number(key: HeadKey, modules: Modules) -> int | None:
    module = modules.get((key.kind, key.layer))
    return module.number if module is not None else None


def _numbers(heads: Sequence[HeadKey], modules: Modules) -> dict[str, list[int]]:
    """Layers and heads by their numbers in swaps."""
    layers = {number for key in heads if (number := _number(key, modules))}
    return {"layers": sorted(layers), "heads": sorted({key.head for key in heads})}


def _label_column(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The usual name of the column of classes, for a classifier and a table."""
    is_table = manifest.get("classifies") and has_columns(str(manifest.get("texts")))
    return {"label_column": "label"} if is_table else {}


def _command(
    heads: Sequence[HeadKey],
    manifest: Mapping[str, Any],
    modules: Modules,
    how: Mapping[str, Sequence[Any]],
    out: str,
) -> str | None:
    """A swap of one head at a time on the inputs of the audit; None if that is not possible.

    Args:
        heads: The heads; at least one has to have a number in swaps.
        manifest: Manifest of the audit.
        modules: The attention module of every layer.
        how: Further options.
        out: Folder of the results.
    """
    source = manifest.get("texts")
    if manifest.get("even_so"):
        return None  # a swap uses the model's own closeness
    if source is None or not any(_number(key, modules) for key in heads):
        return None
    if manifest.get("embeds") and manifest.get("documents", LEAST_SENTENCES) < LEAST_SENTENCES:
        return None  # too few similarities to rank
    options = ("text_column", "target_column", "max_length", "max_tokens", "dtype", "revision")
    given = {**recorded(manifest, options), **_label_column(manifest)}
    if is_loaded(manifest) or source in FROM_PYTHON:
        left_out = {"revision", "dtype"} if is_loaded(manifest) else {"revision"}
        given = {option: value for option, value in {**how, **given}.items() if option not in left_out}
        options = {"per_head": True, **given, "directory": out}
        return python_call("fenchel.swap.swap", manifest, options, ready_made="batches")
    whole_file = {"whole_file": True} if manifest.get("whole_file") else {}
    return written_command(
        "swap", manifest, {**whole_file, **given, "per_head": True, **how}, out.replace("_", "-")
    )
