"""The manifest of an audit: model, text, options and closeness."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING, Annotated, Any, Literal

from torch import nn

from fenchel import __version__
from fenchel.arguments import number_of
from fenchel.auditing.inputs import device_and_dtype
from fenchel.closeness.tsallis import ORDERS_OF_HEADS, Tsallis, closeness_of, name_of
from fenchel.errors import ModelError
from fenchel.integrations.backend import inference_of, own_estimators
from fenchel.integrations.registry import attention_modules
from fenchel.integrations.transformers import language_head, names_classes
from fenchel.io.storage import (
    Field,
    NonEmptyStr,
    NonNegativeInt,
    OpenRecord,
    PositiveFloat,
    PositiveInt,
    Seed,
    Sha256,
)
from fenchel.nn.inference import attention_layers

if TYPE_CHECKING:
    from fenchel.auditing.inputs import Batches, LoadedRun, RunModel
    from fenchel.run_options import AuditOptions


def closeness_sentence(name: str | None) -> str:
    """Description of a closeness in one sentence; empty for Kullback-Leibler."""
    if name is None:
        return ""
    near = closeness_of(name)
    assert isinstance(near, Tsallis)  # noqa: S101 - only None names Kullback and Leibler's
    called = {"tsallis:2": " (sparsemax)", "tsallis:1.5": " (1.5-entmax)"}.get(name, "")
    form = "Csiszár's" if near.relative == "csiszar" else "Bregman's"
    warm = "" if near.temperature == 1 else f", times {near.temperature:g}"
    return (
        f"Instead of softmax, the closeness is Tsallis of order {near.order:g}{called}, {form} form{warm}: attention "
        "is its first-order solution, and weights may be exactly zero."
    )


def check_model_closeness(model: nn.Module, name: str | None, *, even_so: bool) -> None:
    """Raise if a model attends under another closeness than the one that is to be measured.

    Args:
        model: The model.
        name: Of :func:`closeness_name`.
        even_so: Whether to measure it nevertheless.

    Raises:
        ModelError: Naming the first layer that differs.
    """
    if even_so:
        return
    for site, own in _own_names(model).items():
        if own == name:
            continue
        where = f"{site} of {type(model).__name__}" if site else type(model).__name__
        if own == ORDERS_OF_HEADS:
            remedy = "an audit measures one for all heads; pass --even-so (even_so=True) to do so anyway"
        elif own is None:
            remedy = (
                "the audit would not measure the attention of the model. Omit closeness; or, if the model was trained "
                "with it, load it with the attn_implementation of its training ('fenchel_sparsemax' or "
                "'fenchel_entmax15'; see its config.json); or pass --even-so (even_so=True)"
            )
        else:
            remedy = f"pass --closeness {own} (closeness={own!r}), or --even-so (even_so=True)"
        raise ModelError(
            f"{where} uses {own or 'softmax'}, but the audit measures {name or 'softmax'}: {remedy}."
        )


def _own_names(model: nn.Module) -> dict[str, str | None]:
    """Name of the closeness of every attention layer, by the name of the layer."""
    layers = attention_layers(model)
    if layers:
        return {name: name_of(getattr(layer, "effective_closeness", None)) for name, layer in layers.items()}
    return {
        name: name_of(inference_of(module).closeness) for module, name in attention_modules(model).items()
    }


# Version of the files that an audit writes; since 4 it is a table of queries.
SCHEMA = 4

# Definition of templates and evidence in each space.
CONVENTIONS: dict[str, str] = {
    "input": (
        "Templates are the inputs of the key map times the model's own scaling, t_i = x_i * scaling "
        "(1/sqrt(d') in most models, d' the width of a head); the evidence is the query taken back through "
        "the key weight, z = K^T q."
    ),
    "key": (
        "Templates are the keys times the model's own scaling, t_i = k_i * scaling, and the evidence is the "
        "query, z = q, both as they reach the attention function, after rotary embeddings and norms, but the "
        "scaling 1/sqrt(d') is a factor of the keys also in models, such as OPT, that multiply queries by it."
    ),
}

_SQRT_D = (
    "Templates are the inputs of the key map divided by the square root of the head's width, t_i = x_i/sqrt(d'), as "
    "the paper prints for every model; the evidence is the query taken back through the key weight, z = K^T q. A "
    "model with another scaling, such as T5, uses other scores."
)

# The same for attention layers of ``fenchel.nn``, which define them themselves.
LAYER_CONVENTIONS: dict[str, str] = {
    "input": (
        "Templates are the inputs of the layer's key map times the scale of its evidence, t_i = x_i * scale; the "
        "evidence is the layer's own z taken back through the key weight, K^T z; alpha and the preference are the "
        "layer's own."
    ),
    "key": (
        "Templates, evidence, alpha and preference are those of the attention layer itself: t_i = k_i * scale and z = "
        "q unless its evidence says otherwise."
    ),
}


_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Manifest(OpenRecord):
    """The manifest of a saved audit, with fields in the order of display; later versions may add fields.

    ``reads`` is omitted for text, ``embeds`` unless a swap compares sentences, ``classifies`` unless
    a swap can measure the loss of its classes; ``template_scale``, ``closeness``,
    ``even_so``, ``queries``, ``whole_file`` and the columns are there only if given, ``estimator`` only if the model's
    is not first order; ``estimated_seconds`` is the estimate of ``seconds`` after the first batch, if there was one.
    """

    version: Annotated[int, Field(ge=SCHEMA, le=SCHEMA, alias="schema")]
    fenchel: NonEmptyStr
    torch: str | None
    transformers: str | None
    python: str | None
    model: NonEmptyStr
    revision: str | None
    model_class: NonEmptyStr
    dtype: NonEmptyStr
    device: str | None
    space: Literal["input", "key"]
    template_scale: Literal["model", "sqrt_d"] = "model"
    closeness: NonEmptyStr = ""
    even_so: bool = False
    estimator: NonEmptyStr = ""
    alpha: PositiveFloat
    tol: PositiveFloat
    max_length: PositiveInt | None
    stride: PositiveInt | None
    batch_size: PositiveInt | None
    max_tokens: PositiveInt | None
    queries: PositiveInt = 1
    layers: list[PositiveInt] | None
    heads: list[PositiveInt] | None
    baseline: Literal["auto", "twin", "none"]
    twin: str | None
    texts: str | None
    reads: Literal["images", "inputs", "examples"] = "inputs"
    loader: NonEmptyStr = ""
    loader_sha256: NonEmptyStr = ""
    embeds: bool = False
    classifies: bool = False
    whole_file: bool = False
    text_column: str = ""
    target_column: str = ""
    text_sha256: Sha256 | None
    documents: NonNegativeInt
    tokens: NonNegativeInt
    seconds: _Seconds = 0.0
    estimated_seconds: _Seconds = 0.0
    shard: Annotated[str, Field(pattern=r"^[0-9]{1,9}(,[0-9]{1,9})*/[0-9]{1,9}\z")]
    merged_from: PositiveInt | None
    seed: Seed
    convention: NonEmptyStr


# Keys of a manifest, in the order of display.
KEYS = tuple(field.alias or name for name, field in Manifest.model_fields.items())

# Entries that are summed over shards.
COUNTS = frozenset({"documents", "tokens", "seconds", "estimated_seconds"})

# Entries that do not affect results; ``twin`` says whether the untrained twin was audited, or why not.
OUTCOMES = COUNTS | {"twin", "embeds", "classifies"}

# Versions and places, in which shards of one audit may differ.
PLACES = frozenset({"torch", "transformers", "python", "device", "texts"})

# Entries that name the shard of an audit.
PARTS = frozenset({"shard", "merged_from"})


def describe(
    found: RunModel, batches: Batches, options: AuditOptions, run: LoadedRun | None = None
) -> dict[str, Any]:
    """Create the manifest of an audit.

    Args:
        found: The model.
        batches: The batches that it reads.
        options: Options of the audit.
        run: Model and batches of a loader.

    Returns:
        JSON values, with keys in the order of ``KEYS``.
    """
    model = found.model
    reads = getattr(batches, "reads", "text")
    layers = attention_layers(model)
    conventions = LAYER_CONVENTIONS if layers else CONVENTIONS
    sentences = (
        _SQRT_D if options.template_scale == "sqrt_d" else conventions[options.space],
        closeness_sentence(options.closeness),
    )
    only_if_given = {
        "queries": options.queries if isinstance(options.queries, int) else None,
        "even_so": options.even_so and any(own != options.closeness for own in _own_names(model).values()),
        "estimator": _own_estimators(model),
        "reads": None if reads == "text" else reads,
        # A swap compares sentence embeddings of a model without a language-model head.
        "embeds": reads == "text" and not layers and not any(map(language_head, found.class_names)),
        "classifies": (reads if reads == "images" else "texts") in map(names_classes, found.class_names),
    }
    return in_order(
        {
            **described_model(found, SCHEMA),
            **options.recorded,
            **{name: value for name, value in only_if_given.items() if value},
            "max_length": batches.max_length,
            "stride": batches.stride,
            "batch_size": getattr(batches, "batch_size", None),
            "baseline": options.control,
            "twin": None,
            "texts": batches.description,
            **({} if run is None else run.manifest),
            "text_sha256": batches.text_sha256,
            "documents": 0,
            "tokens": 0,
            "seconds": 0.0,
            "shard": str(options.shard),
            "merged_from": None,
            "convention": " ".join(filter(None, sentences)),
        }
    )


def described_model(found: RunModel, schema: int) -> dict[str, Any]:
    """The entries of a manifest for the versions and the model; None for a package that is not installed.

    Args:
        found: The model.
        schema: Version of the files that the run writes.
    """
    device, dtype = device_and_dtype(found.model)
    return {
        "schema": schema,
        "fenchel": __version__,
        "torch": _installed("torch"),
        "transformers": _installed("transformers"),
        "python": platform.python_version(),
        "model": found.name,
        "revision": found.revision,
        "model_class": type(found.model).__name__,
        "dtype": str(dtype).removeprefix("torch."),
        "device": str(device),
    }


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _own_estimators(model: Any) -> str:
    """A note for models that do not infer by first order; empty for those that do."""
    layers = attention_layers(model)
    own = [layer.effective_estimator for layer in layers.values()] or own_estimators(model).values()
    others = sorted({*own} - {"first_order"})
    if not others:
        return ""
    return (
        f"the model uses the {' and '.join(others).replace('_', ' ')} estimator; attention here is the "
        "first-order solution of the problems of its own forward pass"
    )


def in_order(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with its keys in the order of ``KEYS``; unknown keys come last."""
    known = {key: manifest[key] for key in KEYS if key in manifest}
    return known | {key: manifest[key] for key in sorted(manifest) if key not in known}


def shards_of(manifest: Mapping[str, Any]) -> tuple[frozenset[int], int]:
    """Parse ``i/n``, or ``i,j/n`` of merged shards, into the shards of an audit and their total number."""
    indices, _, count = str(manifest["shard"]).partition("/")
    return frozenset(map(int, indices.split(","))), int(count)


def sample_words(queries: int | None) -> str | None:
    """Description of a sample of queries; None without one.

    Example:
        >>> sample_words(32)
        '32 queries of each window'
    """
    return None if queries is None else f"{number_of(queries, 'query', 'queries')} of each window"
