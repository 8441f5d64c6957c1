"""Tiny random transformers, one per family, built from configurations: no download, quick."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from torch import Tensor, nn

from fenchel.nn import MultiheadAttention, TransportAttention

TOKENS = 9
_VOCABULARY = 50
_IDS: dict[str, Any] = {"vocab_size": _VOCABULARY, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_SIZES: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 32,
}
_BERT = {**_IDS, **_SIZES}
_LLAMA = {**_BERT, "num_key_value_heads": 2, "head_dim": 8}
_IMAGES: dict[str, Any] = {"image_size": 8, "patch_size": 4, "num_channels": 1}
_T5 = dict(_IDS, d_model=24, d_kv=6, d_ff=32, num_layers=2, num_heads=4, decoder_start_token_id=0)
_SIDES = {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in {"layers": 2, "attention_heads": 4, "ffn_dim": 32}.items()
}
_MARIAN = (
    dict(_IDS, d_model=24, max_position_embeddings=32, decoder_start_token_id=1)
    | _SIDES
    | {"decoder_layers": 3}
)
_SWIN = dict(
    _IMAGES, image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 4], window_size=4
)
_MODERNBERT = dict(_BERT, cls_token_id=1, sep_token_id=2, local_attention=4, global_attn_every_n_layers=2)
_GPT2 = {**_IDS, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 32}
_GPT_NEOX = {**_BERT, "max_position_embeddings": 32}
_DISTILBERT = {**_IDS, "dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 32}

_CONFIGURATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": ("AlbertConfig", {**_BERT, "num_hidden_layers": 3, "embedding_size": 8}),
    "bart": ("BartConfig", _MARIAN),
    "bert": ("BertConfig", _BERT),
    "clip_text": ("CLIPTextConfig", {**_BERT, "max_position_embeddings": 32}),
    "deberta_v2": ("DebertaV2Config", _BERT),
    "diffllama": ("DiffLlamaConfig", _LLAMA),
    "distilbert": ("DistilBertConfig", _DISTILBERT),
    "gemma2": ("Gemma2Config", {**_LLAMA, "query_pre_attn_scalar": 16}),
    "gpt2": ("GPT2Config", _GPT2),
    "gpt_neox": ("GPTNeoXConfig", _GPT_NEOX),
    "gpt_oss": ("GptOssConfig", {**_LLAMA, "num_local_experts": 2, "num_experts_per_tok": 1}),
    "llama": ("LlamaConfig", _LLAMA),
    "longt5": ("LongT5Config", _T5),
    "marian": ("MarianConfig", _MARIAN),
    "mistral": ("MistralConfig", {**_LLAMA, "sliding_window": 3}),
    "mobilebert": ("MobileBertConfig", {**_BERT, "embedding_size": 16, "intra_bottleneck_size": 16}),
    "modernbert": ("ModernBertConfig", _MODERNBERT),
    "mt5": ("MT5Config", _T5),
    "opt": ("OPTConfig", {**_BERT, "ffn_dim": 32, "word_embed_proj_dim": 24, "max_position_embeddings": 32}),
    "qwen3": ("Qwen3Config", _LLAMA),
    "swin": ("SwinConfig", _SWIN),
    "t5": ("T5Config", _T5),
    "umt5": ("UMT5Config", _T5),
    "vit": ("ViTConfig", {**_SIZES, **_IMAGES}),
}

DISPATCHING = (
    *("albert", "bart", "bert", "clip_text", "distilbert", "gpt2", "gpt_neox", "llama", "marian", "mistral"),
    *("mobilebert", "modernbert", "mt5", "qwen3", "swin", "t5", "umt5", "vit"),
)
"""The families above that send all of their attention through the registry, with arguments that are understood."""

_ENCODER_DECODER = ("bart", "longt5", "marian", "mt5", "t5", "umt5")

_ATTENTION: dict[str, str | tuple[str, ...]] = {
    **dict.fromkeys(("bert", "mobilebert"), "attention.self"),
    **dict.fromkeys(("clip_text", "llama", "mistral", "qwen3"), "self_attn"),
    **dict.fromkeys(("distilbert", "swin", "vit"), ".attention"),
    **dict.fromkeys(("gpt2", "modernbert"), ".attn"),
    "albert": "albert_layers.0.attention",
    "marian": ("self_attn", "encoder_attn"),
    "t5": ("SelfAttention", "EncDecAttention"),
}
"""How the names of the modules end whose last output is attention weights."""


def tiny_model(
    family: str,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    head: str = "AutoModel",
    **overrides: Any,
) -> Any:
    """A random model of ``family``, in eval mode, with weights that make attention uneven."""
    import transformers

    if family.endswith("t5") and Version(transformers.__version__) < Version("5.15"):
        pytest.skip("transformers sends T5's attention through its registry from 5.15")
    class_name, arguments = _CONFIGURATIONS[family]
    configuration = getattr(transformers, class_name)(**{**arguments, **overrides})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, head).from_config(configuration)
        # As initialised, scores are near zero and biases are zero: nothing would show if a term went missing.
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0, 0.5 if "embed" in name else 1.5 / parameter.shape[-1] ** 0.5)
                elif "norm" not in name.lower():
                    parameter.normal_(0, 0.3)
    return model.to(dtype).eval()


def tiny_inputs(
    family: str, *, padding: str = "right", batch: int = 3, seed: int = 1, dtype: torch.dtype = torch.float64
) -> dict[str, Any]:
    """What ``tiny_model(family)`` reads: rows of different lengths, padded "right", "left" or "none"."""
    generator = torch.Generator().manual_seed(seed)
    if family in ("vit", "swin"):
        return tiny_images(8 if family == "vit" else 16, batch=batch, seed=seed, dtype=dtype)

    def ids_and_mask(tokens: int) -> tuple[Tensor, Tensor]:
        ids = torch.randint(3, _VOCABULARY, (batch, tokens), generator=generator)
        lengths = tokens - 2 * torch.arange(batch)[:, None]
        positions = torch.arange(tokens)[None, :]
        mask = {
            "right": positions < lengths,
            "left": positions >= tokens - lengths,
            "none": torch.ones(batch, tokens, dtype=torch.bool),
        }[padding]
        return ids.masked_fill(~mask, 0), mask.long()

    ids, mask = ids_and_mask(TOKENS)
    inputs = {"input_ids": ids, "attention_mask": mask}
    if family in _ENCODER_DECODER:
        decoder_ids, decoder_mask = ids_and_mask(TOKENS - 2)
        inputs.update(decoder_input_ids=decoder_ids, decoder_attention_mask=decoder_mask)
    return inputs


def tiny_images(
    size: int = 8, *, batch: int = 2, seed: int = 1, dtype: torch.dtype = torch.float64
) -> dict[str, Any]:
    """Images of one channel for the ViT and Swin models."""
    generator = torch.Generator().manual_seed(seed)
    return {"pixel_values": torch.randn(batch, 1, size, size, generator=generator).to(dtype)}


def eager_weights(family: str, inputs: dict[str, Any], **options: Any) -> list[tuple[str, Tensor]]:
    """Name and attention weights (B, H, m, n) of every call of the family's eager attention, in order."""
    model = tiny_model(family, attn_implementation="eager", **options)
    calls: list[tuple[str, Tensor]] = []

    def record(name: str) -> Any:
        return lambda _module, _args, output: calls.append((name, output[-1]))

    for name, module in model.named_modules():
        if name.endswith(_ATTENTION[family]):
            module.register_forward_hook(record(name))
    with torch.no_grad():
        model(**inputs, output_attentions=True)
    return calls


class _Block(nn.Module):
    def __init__(self, width: int, attention: nn.Module) -> None:
        super().__init__()
        self.self_attn, self.norm = attention, nn.LayerNorm(width)

    def forward(self, x: Tensor, queries: Tensor) -> Tensor:
        return self.norm(queries + self.self_attn(queries, x, x)[0])


class ViT(nn.Module):
    """Patches, a learned class token, layers of attention and classes.

    Args:
        width: Of every layer.
        depth: How many layers.
        heads: Of every layer.
        patch: Pixels of a patch, to a side.
        transport: Options of a :class:`~fenchel.nn.TransportAttention` as the last layer, by which alone it answers.
    """

    def __init__(self, width: int, depth: int, heads: int, patch: int = 4, **transport: Any) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, patch, patch)
        self.class_token = nn.Embedding(1, width)
        layers: list[nn.Module] = [
            _Block(width, MultiheadAttention(width, heads, batch_first=True)) for _ in range(depth)
        ]
        if transport:
            layers[-1] = _Block(width, TransportAttention(width, heads, batch_first=True, **transport))
        self.layers = nn.ModuleList(layers)
        self.classes = nn.Linear(width, 3)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embed(images).flatten(2).mT
        x = torch.cat((self.class_token.weight.expand(len(x), 1, -1), x), 1)
        for layer in self.layers[:-1]:
            x = layer(x, x)
        return self.classes(self.layers[-1](x, x[:, :1])[:, 0])


class Encoder(nn.Module):
    """Tokens through attention layers, each of which adds to what it reads."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers: Any = nn.ModuleList(layers)

    def forward(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            attended = layer(tokens, tokens, tokens, key_padding_mask=padding)
            tokens = tokens + (attended if isinstance(attended, Tensor) else attended[0])
        return tokens


class AttentionPooling(nn.Module):
    """Words, 0 being padding, that a learned question reads, and classes."""

    def __init__(self, vocabulary: int, classes: int, width: int, heads: int, **options: Any) -> None:
        super().__init__()
        self.embed, self.question = nn.Embedding(vocabulary, width), nn.Embedding(1, width)
        self.attention = MultiheadAttention(width, heads, batch_first=True, **options)
        self.classify = nn.Linear(width, classes)

    def forward(self, numbers: Tensor) -> Tensor:
        x = self.embed(numbers)
        question = self.question.weight.expand(len(x), 1, -1)
        pooled, _ = self.attention(question, x, x, key_padding_mask=numbers == 0, need_weights=False)
        return self.classify(pooled[:, 0])


def configured(folder: Path, file: str = "config.json", **changes: object) -> None:
    """Change what was saved of how a model or its tokenizer is made."""
    path = folder / file
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
