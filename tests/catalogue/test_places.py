"""What is said of scores and places beyond their formulas: limits, identities, and the models of transformers."""

import pytest
import torch
from torch import Tensor
from transformers import XLNetConfig
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

from fenchel import functional as F
from fenchel.catalogue import entry
from fenchel.nn import MultiheadAttention
from fenchel.nn.evidence import RelativeKeys, Rotary, TransformerXL
from tests.catalogue.references.places import causal_scores

ESTIMATORS = ("first_order", "second_order", "exact")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def output(name: str, estimator: str = "first_order", **inputs) -> Tensor:
    one = entry(name)
    return one.run(estimator, **{**one.inputs(), **inputs}).output


def test_the_biases_of_mpt_are_one_belief_with_those_of_the_paper():
    given = entry("alibi").inputs()
    query, key, value = given["query"], given["key"], given["value"]
    bias = build_mpt_alibi_tensor(2, 6).to(query.dtype) + causal_scores(query)
    expected = (query @ key.mT / 2 + bias).softmax(-1) @ value
    torch.testing.assert_close(output("alibi"), expected)


def test_rotary_in_halves_is_llamas():
    query, key = drawn(1, 2, 6, 8), drawn(1, 2, 6, 8, seed=1)
    angles = torch.arange(6.0, dtype=torch.float64)[:, None] * 10_000.0 ** (
        -torch.arange(0, 8, 2, dtype=torch.float64) / 8
    )
    both = torch.cat([angles, angles], -1)[None]
    theirs = apply_rotary_pos_emb(query, key, both.cos(), both.sin())
    ours = Rotary(8, layout="halves")(query, key)
    torch.testing.assert_close(ours[:2], theirs)


def test_a_window_is_longformers():
    generator = torch.Generator().manual_seed(0)
    from transformers import LongformerConfig

    config = LongformerConfig(
        hidden_size=8, num_attention_heads=2, attention_window=[4], attention_probs_dropout_prob=0.0
    )
    theirs = LongformerSelfAttention(config, 0).double().eval()
    x = torch.randn(1, 8, 8, generator=generator, dtype=torch.float64)
    masked = torch.zeros(1, 8, dtype=torch.float64)
    found = theirs(
        x, masked, is_index_masked=masked > 0, is_index_global_attn=masked > 0, is_global_attn=False
    )[0]
    named = (theirs.query, theirs.key, theirs.value)
    query, key, value = (one(x).unflatten(-1, (2, 4)).transpose(1, 2) for one in named)
    ours = entry("sliding-window").run(query=query, key=key, value=value, width=4).output
    torch.testing.assert_close(ours.transpose(1, 2).flatten(2), found)


def test_sharpening_believes_often_and_a_plain_head_reads_by_content():
    given = entry("neural-turing-machine").inputs()
    still = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64).expand_as(given["shift"])
    plain = {**given, "gate": torch.ones_like(given["gate"]), "shift": still}
    once = {**plain, "sharpness": torch.ones_like(given["sharpness"])}
    content = {name: given[name] for name in ("query", "memory", "strength")}
    torch.testing.assert_close(output("neural-turing-machine", **once), output("content", **content))
    cold = output("neural-turing-machine", **{**plain, "sharpness": 2000 * once["sharpness"]})
    first = torch.cosine_similarity(
        given["query"].unsqueeze(-2), given["memory"].unsqueeze(-3), dim=-1
    ).argmax(-1)
    nearest = given["memory"].gather(-2, first.unsqueeze(-1).expand_as(given["query"]))
    torch.testing.assert_close(cold, nearest, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_key_strength_is_evidence_or_reliability_at_first_order_only(estimator):
    asked = entry("content").run().inferences[0]
    strength = entry("content").inputs()["strength"]
    as_alpha = F.attention(
        asked.evidence / strength.unsqueeze(-1),
        asked.templates,
        asked.values,
        alpha=strength,
        scale=1.0,
        estimator=estimator,
    )
    apart = float((as_alpha - asked.answer(estimator)).abs().max())
    assert (apart < 1e-9) is (estimator == "first_order")


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("name", ["transformer-xl", "shaw", "rotary"])
def test_places_are_distances_for_every_estimator(name, estimator):
    """The same tokens farther along, with nothing before them, answer alike."""
    evidence = {
        "transformer-xl": lambda: TransformerXL(2, 4, width=6),
        "shaw": lambda: RelativeKeys(1, 4, max_distance=2),
        "rotary": lambda: Rotary(4),
    }[name]().double()
    for seed, parameter in enumerate(evidence.parameters()):
        parameter.data.copy_(drawn(*parameter.shape, seed=seed))
    torch.manual_seed(0)
    layer = MultiheadAttention(
        8, 2, batch_first=True, evidence=evidence, estimator=estimator, dtype=torch.float64
    )
    x, before = drawn(1, 4, 8), drawn(1, 3, 8, seed=9)
    here, _ = layer(x, x, x)
    padded = torch.cat([before, x], 1)
    there, _ = layer(x, padded, padded, key_padding_mask=torch.arange(7)[None] < 3, query_offset=3)
    torch.testing.assert_close(there, here, rtol=1e-6, atol=1e-8)


def xlnet_layer() -> tuple[XLNetRelativeAttention, XLNetModel]:
    torch.manual_seed(0)
    config = XLNetConfig(
        vocab_size=11, d_model=8, n_head=2, n_layer=1, d_inner=4, dropout=0.0, attn_type="bi", mem_len=2
    )
    model = XLNetModel(config).eval()
    layer = model.layer[0].rel_attn
    assert isinstance(layer, XLNetRelativeAttention)
    for seed, parameter in enumerate(layer.parameters()):
        parameter.data.copy_(drawn(*parameter.shape, seed=seed) / 2)
    return layer, model


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 0, 4, 1, 2]])
def test_two_streams_are_those_of_transformers_up_to_its_output(order):
    layer, model = xlnet_layer()
    x, asking, memory = drawn(1, 5, 8).float(), drawn(1, 5, 8, seed=1).float(), drawn(1, 2, 8, seed=2).float()
    rank = torch.tensor(order)
    hidden = [
        torch.cat([torch.zeros(5, 2, dtype=torch.bool), one], 1).float()[:, :, None, None]
        for one in (rank > rank.unsqueeze(-1), rank >= rank.unsqueeze(-1))
    ]
    code = model.relative_positional_encoding(5, 7, bsz=1)
    sequences = [one.transpose(0, 1) for one in (x, asking, memory)]
    with torch.no_grad():
        theirs = layer(sequences[0], sequences[1], *hidden, code, None, mems=sequences[2])[:2]
    network = TransformerXL(2, 4, width=8)
    network.distance_weight.data = layer.r.data.permute(1, 2, 0).contiguous()
    network.key_importance.data, network.distance_importance.data = layer.r_w_bias.data, layer.r_r_bias.data
    project = torch.stack([weight.data.transpose(0, 1) for weight in (layer.q, layer.k, layer.v)])
    ours = (
        entry("xlnet")
        .run(x=x, asking=asking, memory=memory, order=rank, project=project, network=network)
        .output
    )
    for stream, answer, expected in zip((x, asking), ours, theirs, strict=True):
        made = layer.layer_norm(torch.einsum("bhnd,whd->bnw", answer, layer.o) + stream)
        torch.testing.assert_close(made, expected.transpose(0, 1), rtol=1e-4, atol=1e-5)


def test_shifted_windows_join_what_plain_windows_part():
    given = entry("swin").inputs()
    for shift, joined in ((0, False), (1, True)):
        image = given["image"].clone().requires_grad_()
        found = output("swin", **{**given, "image": image, "shift": shift})
        (gradient,) = torch.autograd.grad(found[0, 1, 1].sum(), image)
        assert bool(gradient[0, 2, 2].abs().max() > 0) is joined
        assert not gradient[0, 3, 3].any()
