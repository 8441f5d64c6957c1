"""The keyword arguments that a family passes to its attention: which are harmless, and which are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fenchel.errors import ModelError

__all__ = ["HARMLESS", "refuse_unsupported"]

HARMLESS = frozenset(
    {
        # position information that has already acted on queries and keys
        "position_ids",
        "cache_position",
        # what the mask already contains
        "sliding_window",
        "encoder_attention_mask",
        "cu_seq_lens_q",
        "cu_seq_lens_k",
        "max_length_q",
        "max_length_k",
        "seq_idx",
        # where keys and values came from
        "encoder_hidden_states",
        "past_key_values",
        "use_cache",
        # what is returned, and how
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "deterministic",
        # training only
        "num_items_in_batch",
    }
)
"""Keyword arguments that leave softmax(scaling·⟨q, k⟩ + log u) as it is."""

_REFUSED = {
    "softcap": "it squashes the scores, so they are no longer a preference plus linear evidence",
    "s_aux": "attention sinks add a learned template to every softmax",
    "sinks": "attention sinks add a learned template to every softmax",
    "indices": "sparse attention keeps only selected keys, and the mask does not say which",
    "block_indices": "sparse attention keeps only selected blocks of keys, and the mask does not say which",
    "cache": "a paged cache holds keys that are not in this call",
}


def refuse_unsupported(site: str, family: str, arguments: Mapping[str, Any]) -> None:
    """Raise if ``arguments`` holds something that may change the attention scores unseen.

    Args:
        site: Qualified name of the attention module, for the message.
        family: Name of its class, for the message.
        arguments: Keyword arguments of the call, without those that are used (scaling, position_bias,
            is_causal).

    Raises:
        ModelError: Naming site, class and argument. An argument that is None or False is absent.
    """
    for name, given in arguments.items():
        if name in HARMLESS or given is None or given is False:
            continue
        reason = _REFUSED.get(name)
        if reason is None:
            raise ModelError(
                f"{site} ({family}) passes {name!r} to its attention, an argument whose effect on the scores "
                "is not known here, so its attention cannot be taken over faithfully. Call the model without "
                "it, or report the family"
            )
        raise ModelError(
            f"{site} ({family}) passes {name!r} to its attention, which is not supported: {reason}. "
            f"Use a model without it, or a configuration that switches it off"
        )
