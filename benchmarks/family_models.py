"""One tiny random model of a family of transformers, and inputs that it takes, from its configuration alone."""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers
from torch import Tensor, nn

LARGEST = 60_000_000
VOCABULARY, TOKENS, BATCH = 128, 12, 2

# Configurations.

_KEPT = re.compile(
    r"kernel|stride|dilation|type_vocab|_groups|max_2d|num_channels|_channels$|num_labels|mel|rate|factor|group_size"
    r"|num_buckets|max_distance|temporal|ratio|frame_|sampling|codebooks|conv_size|chunk|block_size|n_fft|levels"
)
_Rule = tuple[re.Pattern[str], Callable[[int], int]]
_COUNTS: tuple[_Rule, ...] = (
    (re.compile(r"vocab_size|codebook_size|num_embeddings|_vocab$"), lambda v: min(v, VOCABULARY)),
    (re.compile(r"n_group|topk_group|expert_group"), lambda v: min(v, 1)),
    (re.compile(r"experts?_per_tok|top_?k|num_selected|n_activated"), lambda v: min(v, 2)),
    (re.compile(r"experts"), lambda v: min(v, 4)),
    (re.compile(r"layers?$|depths?$|num_blocks|num_stages$|hidden_layers|_blocks$"), lambda v: min(v, 2)),
    (re.compile(r"dense_replace"), lambda v: min(v, 1)),
    (re.compile(r"tokens_per_image"), lambda v: min(v, 4)),
    (re.compile(r"num_queries|num_query|num_latents|_length$"), lambda v: min(v, 16)),
    (re.compile(r"position|n_ctx|max_seq"), lambda v: min(v, 128)),
    (
        re.compile(r"sliding_window$|local_attention|attention_window|window_size"),
        lambda v: v if 64 < v < 256 else min(v, 4),
    ),
)
_WIDTHS: tuple[_Rule, ...] = (
    (re.compile(r"kv_heads|key_value_heads|num_kv|kv_n_heads|multi_query_group"), lambda v: min(v, 2)),
    (re.compile(r"heads?$"), lambda v: min(v, 4)),
    (re.compile(r"head_dim|d_kv|d_head|kv_channels|head_size|qk_.*dim|head_width"), lambda v: min(v, 16)),
    (re.compile(r"rank"), lambda v: min(v, 16)),
    (re.compile(r"patch_size"), lambda v: min(v, 8)),
    (re.compile(r"image_size|img_size|input_size"), lambda v: min(v, 32)),
    (re.compile(r"size|dim|width|d_model|n_embd|d_ff|hidden|embed|inner|ffn"), lambda v: 64 if v > 64 else v),
)
_NARROW: tuple[_Rule, ...] = (
    (re.compile(r"heads?$|patch|image_size|img_size"), lambda v: v),
    (
        re.compile(r"size|dim|width|d_model|n_embd|d_ff|hidden|embed|inner|ffn|rank|d_kv|channels$"),
        lambda v: v // 8 if v >= 64 else v,
    ),
)


_NEEDED = {"vocab_size": VOCABULARY, "head_dim": 16, "prediction_length": 8}
"""What some configurations leave open."""


def _modeling(config_type: type) -> Any:
    """The module of the models of a configuration; that of the configuration where they are another family's."""
    name = config_type.__module__.replace("configuration_", "modeling_")
    return importlib.import_module(name if importlib.util.find_spec(name) else config_type.__module__)


def _of(config: Any, name: str) -> Any:
    """A setting; None where there is none for all layers."""
    try:
        return getattr(config, name, None)
    except Exception:  # each configuration has errors of its own
        return None


def _layers_of_every_kind(base: Any) -> int:
    """How many layers it takes until each kind of layer was there."""
    kinds = _of(base, "layer_types") or []
    return max((kinds.index(kind) + 1 for kind in set(kinds)), default=0)


class Shrinking:
    """Makes small configurations.

    Args:
        how: "small" sets widths and heads too; "narrow" divides widths by eight and keeps what they are multiples of;
            "short" makes layers, vocabularies and experts fewer and leaves the rest.
    """

    def __init__(self, how: str) -> None:
        self._rules = _COUNTS + {"small": _WIDTHS, "narrow": _NARROW, "short": ()}[how]
        self._how = how
        self._tokens: dict[str, int] = {}

    def __call__(self, base: Any) -> Any:
        return type(base)(**self.arguments(base))

    def arguments(self, base: Any) -> dict[str, Any]:
        parameters = inspect.signature(type(base).__init__).parameters
        given: dict[str, Any] = {}
        for name, parameter in parameters.items():
            value = _of(base, name)
            if value is None and name in _NEEDED:
                given[name] = _NEEDED[name]
            elif isinstance(value, transformers.PreTrainedConfig):
                given[name] = self(value)
            elif isinstance(value, list) and value and isinstance(value[0], transformers.PreTrainedConfig):
                given[name] = [self(one) for one in value]
            elif name.startswith("rope_"):
                small = self._rope(value, base)
                if small is not None:
                    given[name] = small
            elif parameter.default is not None and parameter.kind is not parameter.VAR_KEYWORD:
                small = self._value(name, value)
                if "key_value_heads" in name and value == _of(base, "num_attention_heads"):
                    small = self._value("num_attention_heads", value)
                if name == "num_hidden_layers" and isinstance(small, int):
                    small = max(small, min(_layers_of_every_kind(base), 8))
                if small != value:
                    given[name] = small
        return given

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, bool) or value is None:
            return value
        if re.search(r"token_id$|token_index$|_token$|_id$|_token_ids?$", name):
            if isinstance(value, list | tuple):
                return [self._token(f"{name}{i}", one) for i, one in enumerate(value)]
            return self._token(name, value) if isinstance(value, int) else value
        if isinstance(value, list | tuple) and value and all(isinstance(one, int) for one in value):
            if name == "layer_types":
                return value
            return type(value)(self._of_list(name, one, value) for one in value)
        if not isinstance(value, int) or _KEPT.search(name):
            return value
        for pattern, rule in self._rules:
            if pattern.search(name):
                return rule(value)
        return value

    def _of_list(self, name: str, one: int, values: Any) -> int:
        if _KEPT.search(name) or isinstance(one, bool):
            return one
        if self._how == "small" and re.search(r"heads", name):
            return min(one, 2)
        if (
            self._how == "small"
            and re.search(r"size|dim|width|channels", name)
            and not re.search(r"patch|image|window", name)
        ):
            return max(8, 16 * one // max(min(values), 1)) if one > 16 else one
        small = self._value(name, one)
        return small

    def _token(self, name: str, value: int) -> int:
        if value < 5:
            return value
        return self._tokens.setdefault(name, VOCABULARY - 1 - len(self._tokens))

    def _rope(self, value: Any, base: Any) -> Any:
        if (
            not isinstance(value, dict)
            or self._how == "short"
            or any(isinstance(one, dict) for one in value.values())
        ):
            return None
        if "mrope_section" not in value and "mrope_section" not in inspect.getsource(_modeling(type(base))):
            return None
        small = [4, 2, 2] if self._how == "small" else [2, 3, 3]
        return {**value, "mrope_section": small}


# Models.


def _class_names(family: str) -> Iterator[str]:
    from transformers.models.auto import modeling_auto

    mappings = [name for name in dir(modeling_auto) if name.startswith("MODEL_") and name.endswith("_NAMES")]
    for mapping in sorted(mappings, key=lambda name: name != "MODEL_MAPPING_NAMES"):
        result = getattr(modeling_auto, mapping).get(family)
        if result is not None:
            yield from [result] if isinstance(result, str) else result


def model_class(family: str, config_type: type) -> type[Any] | None:
    """The model without a head, or else the first that there is."""
    for name in _class_names(family):
        result = getattr(transformers, name, None)
        if result is not None:
            return result
    module = _modeling(config_type)
    result = [
        one
        for name, one in vars(module).items()
        if inspect.isclass(one)
        and issubclass(one, transformers.PreTrainedModel)
        and not name.endswith("PreTrainedModel")
        and getattr(one, "config_class", None) is config_type
        and one.__module__ == module.__name__
    ]
    return result[0] if result else None


def _randomise(model: nn.Module, seed: int) -> None:
    """Weights that make attention uneven: as initialised, scores are near zero and nothing would show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            low = name.lower()
            if (
                not parameter.is_floating_point()
                or "norm" in low
                or "ln_" in low
                or low.endswith(("a_log", "dt_bias"))
            ):
                continue
            drawn = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(drawn * (0.5 if "embed" in low else 1.2 / parameter[0].numel() ** 0.5))
            elif "bias" in low or "sink" in low:
                parameter.copy_(drawn * 0.3)


def built(cls: type[Any], config: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    try:
        model = cls._from_config(config, attn_implementation="eager")
    except ValueError:
        model = cls._from_config(config)
    model = model.float().eval()
    _randomise(model, seed)
    return model


def small_enough(cls: type[Any], config: Any) -> bool:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in cls(config).parameters()) <= LARGEST


# Inputs.


def _configs(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if isinstance(value, transformers.PreTrainedConfig):
            yield from _configs(value)


def _setting(config: Any, *names: str) -> Any:
    for name in names:
        for one in _configs(config):
            value = _of(one, name)
            if value is not None:
                return value
    return None


def _pair(size: Any, default: int) -> tuple[int, int]:
    if size is None:
        return default, default
    if isinstance(size, dict):
        return size.get("height", default), size.get("width", default)
    return (size, size) if isinstance(size, int) else (size[-2], size[-1])


class Inputs:
    """What a model may take, as candidates for each name."""

    def __init__(self, model: Any, seed: int) -> None:
        self._model, self._config = model, model.config
        self._generator = torch.Generator().manual_seed(seed + 1)
        self._takes = inspect.signature(model.forward).parameters

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)

    def _ids(self, tokens: int) -> Tensor:
        most = min(VOCABULARY // 2, _setting(self._config, "vocab_size") or VOCABULARY)
        return torch.randint(5, max(most, 6), (BATCH, tokens), generator=self._generator)

    @staticmethod
    def _mask(tokens: int, padded: bool) -> Tensor:
        mask = torch.ones(BATCH, tokens, dtype=torch.long)
        if padded:
            mask[1, tokens - 3 :] = 0
        return mask

    def _images(self) -> list[Tensor]:
        channels = _setting(self._config, "num_channels", "in_channels", "in_chans") or 3
        frames = _setting(self._config, "num_frames", "frames") or 2
        height, width = _pair(_setting(self._config, "image_size", "img_size"), 64)
        shapes = [(BATCH, channels, height, width), (BATCH, frames, channels, height, width)]
        shapes += [
            (BATCH, channels, 64, 64),
            (BATCH, channels, 224, 224),
            (BATCH, 1, channels, height, width),
        ]
        patch = _setting(self._config, "patch_size")
        if isinstance(patch, int):
            temporal = _setting(self._config, "temporal_patch_size") or 1
            shapes += [
                (BATCH * 16, channels * temporal * patch * patch),
                (BATCH, 16, channels * patch * patch),
            ]
        return [self._normal(*shape) for shape in shapes]

    def _sounds(self) -> list[Tensor]:
        bins = (
            _setting(
                self._config,
                "num_mel_bins",
                "input_feat_per_channel",
                "feature_size",
                "input_dim",
                "num_mels",
            )
            or 80
        )
        positions = _setting(self._config, "max_source_positions") or 32
        size = _setting(self._config, "max_length") or 64
        shapes = [(BATCH, bins, 2 * positions), (BATCH, 64, bins), (BATCH, size, bins), (BATCH, bins, 64)]
        shapes += [(BATCH, 1, bins, 64), (BATCH, 1, 1024, 64), (BATCH, 200, bins)]
        width = _setting(self._config, "feature_projection_input_dim", "hidden_size")
        if isinstance(width, int):
            shapes.append((BATCH, 16, width))
        return [self._normal(*shape) for shape in shapes]

    def _series(self) -> list[Tensor]:
        length = _setting(self._config, "context_length", "seq_length") or 32
        lags = max(_setting(self._config, "lags_sequence") or [0])
        channels = _setting(self._config, "num_input_channels", "input_size") or 1
        return [self._normal(BATCH, length + lags), self._normal(BATCH, length + lags, channels)]

    def _waves(self) -> list[Tensor]:
        shapes = [(BATCH, 3200), (BATCH, 1, 3200)]
        return [self._normal(*shape) for shape in shapes] + self._sounds()

    def candidates(self, name: str) -> list[Any]:
        """Tensors that ``name`` may stand for."""
        width = _setting(self._config, "hidden_size", "d_model", "embed_dim", "dim") or 64
        if name in ("input_ids", "ids", "question_input_ids"):
            return [self._ids(TOKENS), self._normal(BATCH, 8).new_zeros(BATCH, 8).long() + 5]
        if name in ("decoder_input_ids",):
            codebooks = _setting(self._config, "num_codebooks")
            ids = [self._ids(TOKENS - 4)]
            if isinstance(codebooks, int):
                ids += [
                    self._ids(TOKENS).repeat(codebooks, 1),
                    self._ids(TOKENS).unsqueeze(-1).repeat(1, 1, codebooks),
                ]
            return ids
        if name in ("pixel_values", "pixel_values_videos", "image", "images", "pixel_values_images"):
            return self._images()
        if name in ("input_features", "audio_features", "input_audio_features", "audio_values", "mel"):
            return self._sounds()
        if name in ("input_values", "audio", "speech_values"):
            return self._waves()
        if name in ("past_values", "past_target"):
            return self._series()
        if name == "bbox":
            return [torch.zeros(BATCH, TOKENS, 4, dtype=torch.long), self._normal(BATCH, TOKENS, 8)]
        if name in (
            "hidden_states",
            "inputs_embeds",
            "encoder_hidden_states",
            "query_embeds",
            "features",
            "embeddings",
        ):
            return [self._normal(BATCH, TOKENS, width), *self._images()[-2:], *self._sounds()[:2]]
        if name.endswith("grid_thw") or name in ("grid_hws", "image_grid_hws"):
            side = [[1, 4, 4]] * BATCH if name.endswith("thw") else [[4, 4]] * BATCH
            return [torch.tensor(side)]
        if name.endswith("spatial_shapes") or name == "image_sizes":
            side = 32 if name == "image_sizes" else 4
            return [torch.tensor([[side, side]] * BATCH)]
        if name in ("pixel_attention_mask",):
            return [torch.ones(BATCH, 16, dtype=torch.long)]
        if name.endswith("attention_mask"):
            return [self._mask(TOKENS, False)]
        return []

    def sets(self) -> Iterator[dict[str, Any]]:
        """Whole inputs, the richest first."""
        required = [
            name
            for name, one in self._takes.items()
            if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        ]
        main = getattr(self._model, "main_input_name", "input_ids")
        first = [main, *(name for name in required if name != main)] if main in self._takes else required
        extra = [name for name in ("bbox", "decoder_input_ids") if name in self._takes and name not in first]
        choices: list[dict[str, Any]] = []
        names = [*first, *extra]
        if "input_ids" in self._takes:
            choices += self._with_media("image", "pixel_values", self._images())
            choices += self._with_media("audio", "input_features", self._sounds())
        if "pixel_values" in self._takes and "input_ids" in self._takes:
            choices += self._product([*dict.fromkeys(["input_ids", "pixel_values", *extra])])
        crosses = any(re.search("cross|encoder_attn", name) for name, _ in self._model.named_modules())
        if crosses and "encoder_hidden_states" in self._takes and "encoder_hidden_states" not in names:
            choices += self._product([*names, "encoder_hidden_states"])
        choices += self._product(names)
        if extra:
            choices += self._product(first)
        for one in ("input_ids", "pixel_values", "input_features", "input_values"):
            if one in self._takes and [one] != names:
                choices += self._product([one, *extra])
        for choice in choices:
            yield from self._masked(choice)

    def _product(self, names: list[str]) -> list[dict[str, Any]]:
        combined: list[dict[str, Any]] = [{}]
        for name in names:
            result = self.candidates(name)
            if not result:
                return []
            combined = [{**one, name: value} for one in combined for value in result][:24]
        return combined

    def _masked(self, choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
        masks = {}
        ids, decoder = choice.get("input_ids"), choice.get("decoder_input_ids")
        if ids is not None and "attention_mask" in self._takes and ids.ndim == 2:
            masks["attention_mask"] = self._mask(ids.shape[1], True)
        if decoder is not None and "decoder_attention_mask" in self._takes and len(decoder) == BATCH:
            masks["decoder_attention_mask"] = self._mask(decoder.shape[1], True)
        if masks:
            yield {**choice, **masks}
            yield {**choice, **{name: torch.ones_like(mask) for name, mask in masks.items()}}
        yield choice
        features = choice.get("input_features")
        for name in ("input_features_mask", "feature_attention_mask", "padding_mask", "attention_mask"):
            if name in self._takes and name not in choice and features is not None and features.ndim == 3:
                for length in (features.shape[-1], features.shape[1]):
                    yield {**choice, name: torch.ones(BATCH, length, dtype=torch.long)}

    def _with_media(self, kind: str, name: str, candidates: list[Tensor]) -> Iterator[dict[str, Any]]:
        """Text around the places that the features of an image or of a sound take."""
        features = getattr(self._model, f"get_{kind}_features", None)
        token = _setting(self._config, f"{kind}_token_id", f"{kind}_token_index")
        if features is None or not isinstance(token, int) or name not in self._takes:
            return
        takes = inspect.signature(features).parameters
        sizes = [False, True] if "image_sizes" in takes else [False]
        for media, with_sizes in itertools.product(candidates, sizes):
            given: dict[str, Any] = {name: media}
            for other, parameter in takes.items():
                needed = parameter.default is parameter.empty or other.endswith("grid_thw")
                needed |= with_sizes and other == "image_sizes"
                if other.endswith(("_mask", "_masks")) and media.ndim == 3:
                    given[other] = torch.ones(BATCH, media.shape[-1], dtype=torch.long)
                elif needed and other not in given and (result := self.candidates(other)):
                    given[other] = result[0]
            try:
                with torch.no_grad():
                    result = features(**given)
            except TimeoutError:
                raise
            except Exception:  # noqa: S112 -- another shape may do
                continue
            result = getattr(result, "pooler_output", result)
            parts = result if isinstance(result, list | tuple) else [result]
            rows = sum(part.numel() // part.shape[-1] for part in parts if isinstance(part, Tensor))
            if rows % BATCH or rows > 2000:
                continue
            ids = self._ids(TOKENS)
            ids = torch.cat((ids[:, :4], torch.full((BATCH, rows // BATCH), token), ids[:, 4:]), 1)
            given["input_ids"] = ids
            for types in ("token_type_ids", "mm_token_type_ids"):
                if types in self._takes:
                    given[types] = (ids == token).long()
            if "decoder_input_ids" in self._takes:
                given["decoder_input_ids"] = self.candidates("decoder_input_ids")[0]
            yield {one: value for one, value in given.items() if one in self._takes}
