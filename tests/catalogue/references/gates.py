"""Gates, from their papers; the LSTM is torch's."""

import torch
from torch import Tensor


def activation_map(x: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("bnc,c->bnc", x, weight)


def activation_classifier(x: Tensor, weight: Tensor) -> Tensor:
    return torch.sigmoid(torch.einsum("bnc,c->b", x, weight) / x.shape[1])


def residual_mask(features: Tensor, mask: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return features + features / (1 + torch.exp(-(torch.einsum("bnk,kc->bnc", mask, weight) + bias)))


def squeeze_excitation(x: Tensor, reduce: Tensor, expand: Tensor) -> Tensor:
    squeezed = torch.nn.functional.adaptive_avg_pool1d(x.mT, 1).squeeze(-1)
    return x * torch.sigmoid(torch.relu(squeezed @ reduce) @ expand)[:, None]


def lstm(x: Tensor, h: Tensor, c: Tensor, weight_x: Tensor, weight_h: Tensor, bias: Tensor) -> Tensor:
    return torch.cat(torch.lstm_cell(x, [h, c], weight_x, weight_h, bias, torch.zeros_like(bias)), -1)


REFERENCES = {
    "u-gat-it": activation_map,
    "u-gat-it-classifier": activation_classifier,
    "residual-attention": residual_mask,
    "squeeze-excitation": squeeze_excitation,
    "lstm": lstm,
}
