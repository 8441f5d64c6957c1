"""Scores and soft dictionaries, from their books."""

from __future__ import annotations

import torch
from torch import Tensor


def scaled_dot(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(query, key, value)


REFERENCES = {"scaled-dot": scaled_dot}
