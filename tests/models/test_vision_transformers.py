"""ViT and OT-ViT: sizes, equality with torch's own encoder, and templates of partners."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel.errors import ModelError, ProblemError
from fenchel.models import AbstractVisionTransformer, OTViT, ViT, build

TINY: dict[str, Any] = {"image_size": 12, "width": 16, "depth": 2, "heads": 2, "mlp_width": 24, "classes": 5}
BATCH = 6

pytestmark = pytest.mark.filterwarnings("ignore::fenchel.errors.CostWarning")

NAMES = ("vit", "ot-vit")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def images(channels: int = 1) -> Tensor:
    return torch.randn(BATCH, channels, 12, 12, dtype=torch.float64)


def tiny(kind: type[AbstractVisionTransformer], **options: Any) -> Any:
    model = kind(**{**TINY, **options}).double().eval()
    for layer in model.layers:
        nn.init.normal_(
            layer.get_parameter("self_attn.in_proj_weight"), std=0.4
        )  # so that attention is far from uniform
    return model


class TorchViT(nn.Module):
    """The same model as one would write it with torch's encoder."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 2, 24, 0.2, "gelu", batch_first=True, norm_first=True)
        self.embed = nn.Conv2d(channels, 16, 4, stride=4)
        self.class_token = nn.Parameter(torch.zeros(1, 1, 16))
        self.position = nn.Parameter(torch.zeros(1, 10, 16))
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(16)
        self.classify = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x).flatten(2).mT
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), patches], 1) + self.position
        return self.classify(self.norm(self.encoder(tokens))[:, 0])


@pytest.mark.parametrize("channels", [1, 3])
def test_vit_is_torchs_encoder_with_the_same_weights(channels):
    ours, theirs = tiny(ViT, channels=channels), TorchViT(channels).double().eval()
    for parameter in (*theirs.encoder.parameters(), *theirs.norm.parameters()):
        nn.init.normal_(parameter, std=0.4)
    with torch.no_grad():
        for name in ("class_token", "position"):
            getattr(theirs, name).copy_(getattr(ours, name))
        theirs.embed.weight.copy_(ours.embed.weight.view(16, channels, 4, 4))
        theirs.embed.get_parameter("bias").copy_(ours.embed.bias)
    theirs.classify.load_state_dict(ours.classify.state_dict())
    ours.layers.load_state_dict(theirs.encoder.layers.state_dict())
    ours.norm.load_state_dict(theirs.norm.state_dict())
    x = images(channels)
    torch.testing.assert_close(ours(x), theirs(x), atol=1e-10, rtol=0)
    for model in (ours, theirs):
        model(x).square().sum().backward()
    for name, parameter in ours.layers.named_parameters():
        expected = theirs.encoder.layers.get_parameter(name).grad
        torch.testing.assert_close(parameter.grad, expected, atol=1e-10, rtol=1e-8)
    with torch.no_grad():
        ours.layers[0].linear1.bias += 0.1
    assert (ours(x) - theirs(x)).abs().max() > 1e-4


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("sizes", "count"),
    [({}, 3_183_114), ({"image_size": 32, "channels": 3, "classes": 100}, 3_218_276)],
    ids=["28x28 grey, 10 classes", "32x32 colour, 100 classes"],
)
def test_the_papers_sizes_have_3_2_million_parameters(name, sizes, count):
    with torch.device("meta"):
        model = build(name, **sizes)
    assert isinstance(model, AbstractVisionTransformer)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert round(count / 1e6, 1) == 3.2
    assert len(model.layers) == 6
    assert model.sizes.patch_size == 4
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.2}


def test_both_start_from_the_same_weights():
    torch.manual_seed(5)
    vit = ViT(**TINY)
    torch.manual_seed(5)
    transport = OTViT(**TINY)
    assert list(vit.state_dict()) == list(transport.state_dict())
    assert all(map(torch.equal, vit.state_dict().values(), transport.state_dict().values()))
    x = images().float()
    assert (vit.eval()(x) - transport.eval()(x)).abs().max() > 1e-5


def test_the_papers_transport_is_the_default():
    layer = OTViT(**TINY).last_attention
    assert (layer.gamma, layer.alpha, layer.cost, layer.extra_preference) == (4.0, 1.0, "dot", "zero")
    assert (layer.estimator, layer.scale) == ("first_order", 1.0)


PARTNERS = torch.tensor([1, 0, -1, 5, 3, -1])
TAKES = [(ViT, "shared"), (OTViT, "zero"), (OTViT, "shared")]


@pytest.mark.parametrize(("kind", "extra_preference"), TAKES)
def test_partners_change_the_images_that_have_one(kind, extra_preference):
    model, x = tiny(kind, extra_preference=extra_preference), images()
    alone, joined = model(x), model(x, partners=PARTNERS)
    changed = (joined - alone).abs().amax(1)
    assert (changed[PARTNERS < 0] < 1e-12).all()
    assert (changed[PARTNERS >= 0] > 1e-6).all()
    torch.testing.assert_close(model(x, partners=torch.full((BATCH,), -1)), alone, atol=0, rtol=0)
    # Image 3 sees image 5, whoever else is in the batch, and no gradient goes anywhere else.
    torch.testing.assert_close(model(x[[3, 5]], partners=torch.tensor([1, -1]))[0], joined[3])
    x.requires_grad_()
    model(x, partners=PARTNERS)[3].sum().backward()
    assert x.grad is not None
    reached = x.grad.abs().amax((1, 2, 3)) > 0
    assert reached.nonzero().flatten().tolist() == [3, 5]


def last_templates(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens before the last layer, and their norms, in the order of the model's own steps."""
    tokens = model.embed(x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2))
    tokens = torch.cat([model.class_token.expand(len(x), -1, -1), tokens], 1) + model.position
    for layer in model.layers[:-1]:
        tokens = layer(tokens)
    return tokens, model.layers[-1].norm1(tokens)


@pytest.mark.parametrize(("kind", "extra_preference"), TAKES)
def test_what_joins_are_the_partners_inputs_of_the_last_layer(kind, extra_preference):
    model, x = tiny(kind, extra_preference=extra_preference), images()[[0, 1]]
    tokens, templates = last_templates(model, x)
    query = templates[:1, :1]
    if kind is OTViT:
        attended = model.last_attention(query, templates[:1], atoms=templates[1:])
    else:
        both = templates.flatten(0, 1).unsqueeze(0)
        attended, _ = model.last_attention(query, both, both)
    token = model.layers[-1].after_attention(tokens[:1, :1], attended)
    expected = model.classify(model.norm(token[:, 0]))
    torch.testing.assert_close(model(x, partners=torch.tensor([1, -1]))[:1], expected)


@pytest.mark.parametrize(
    "options",
    [
        {"gamma": 0.5},
        {"alpha": 3.0},
        {"cost": "squared_euclidean"},
        {"extra_preference": "shared"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_every_option_of_the_transport_changes_the_logits(options):
    plain, model, x = tiny(OTViT), tiny(OTViT, **options), images()
    model.load_state_dict(plain.state_dict())
    assert (model(x, partners=PARTNERS) - plain(x, partners=PARTNERS)).abs().max() > 1e-5


def test_every_size_changes_the_model():
    shape = {name: tuple(p.shape) for name, p in ViT(**TINY).named_parameters()}
    for option, value in {
        "image_size": 16,
        "patch_size": 6,
        "channels": 3,
        "classes": 7,
        "width": 8,
        "depth": 3,
        "mlp_width": 10,
    }.items():
        other = {name: tuple(p.shape) for name, p in ViT(**{**TINY, option: value}).named_parameters()}
        assert other != shape, option
    wide, narrow, x = tiny(ViT), tiny(ViT, heads=4), images()
    narrow.load_state_dict(wide.state_dict())
    assert (wide(x) - narrow(x)).abs().max() > 1e-5
    still, x = tiny(ViT, dropout=0.0).train(), images()
    assert torch.equal(still(x), still(x))
    noisy = tiny(ViT, dropout=0.5).train()
    assert not torch.equal(noisy(x), noisy(x))


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_builds_the_same_model(name):
    odd = {"gamma": 2.0, "cost": "cosine"} if name == "ot-vit" else {}
    model = build(name, **TINY, extra_preference="shared", **odd).double().eval()
    again = build(name, **json.loads(json.dumps(model.configuration())))
    assert type(again) is type(model)
    assert again.configuration() == model.configuration()
    again.double().eval().load_state_dict(model.state_dict())
    x = images()
    assert torch.equal(again(x, partners=PARTNERS), model(x, partners=PARTNERS))
    assert torch.equal(copy.deepcopy(model)(x), model(x))


@pytest.mark.parametrize(("kind", "extra_preference"), TAKES)
def test_mixed_precision(kind, extra_preference):
    model, x = tiny(kind, extra_preference=extra_preference).float(), images().float()
    expected = model(x, partners=PARTNERS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(x, partners=PARTNERS)
    torch.testing.assert_close(logits.float(), expected, atol=0.1, rtol=0.1)
    logits.float().square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize(("kind", "extra_preference"), TAKES)
def test_it_learns(kind, extra_preference):
    model = tiny(kind, extra_preference=extra_preference, dropout=0.0).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    x, labels = images(), torch.tensor([0, 0, 1, 2, 3, 2])
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(x, partners=PARTNERS), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 0}, "image_size of a vision transformer is 0"),
        ({"depth": 2.0}, r"depth of a vision transformer is 2\.0; expected a whole number"),
        ({"patch_size": 5}, "image_size=12 and patch_size=5; expected a patch_size that divides image_size"),
        ({"heads": 3}, "width=16 and heads=3"),
        ({"dropout": 1.0}, r"dropout of a vision transformer is 1\.0; expected a finite number at least 0"),
        ({"dropout": math.nan}, "dropout of a vision transformer is nan"),
        ({"extra_preference": "some"}, "extra_preference is 'some'"),
    ],
)
@pytest.mark.parametrize("kind", [ViT, OTViT])
def test_what_both_refuse_to_be_built_with(kind, options, message):
    with pytest.raises(ProblemError, match=message):
        kind(**{**TINY, **options})


def test_what_one_of_them_refuses_to_be_built_with():
    with pytest.raises(ProblemError, match="extra_preference is 'zero'; expected None or 'shared'"):
        ViT(**TINY, extra_preference="zero")
    with pytest.raises(ProblemError, match=r"gamma of TransportAttention is -1\.0"):
        OTViT(**TINY, gamma=-1.0)
    with pytest.raises(ProblemError, match="cost is 'l2'"):
        OTViT(**TINY, cost="l2")
    matrix: Any = torch.ones(2, 2)
    with pytest.raises(ProblemError, match="cost is a Tensor; expected the name of a cost"):
        OTViT(**TINY, cost=matrix)
    with pytest.raises(
        ModelError, match="name is 'vitt', and there is no such model; expected one of 'vit', 'ot-vit'"
    ):
        build("vitt")
    with pytest.raises(ModelError, match="model 'vit' has no argument 'gamma'; expected some of image_size"):
        build("vit", gamma=1.0)


def wrong(index: int, value: int) -> Tensor:
    partners = PARTNERS.clone()
    partners[index] = value
    return partners


@pytest.mark.parametrize(
    ("x", "partners", "message"),
    [
        (torch.zeros(2, 12, 12), None, r"images have shape \(2, 12, 12\); expected .*\(B, 1, 12, 12\)"),
        (torch.zeros(2, 3, 12, 12), None, r"images have shape \(2, 3, 12, 12\)"),
        (torch.zeros(2, 1, 12, 12, dtype=torch.uint8), None, r"dtype torch\.uint8; expected torch\.float32"),
        (images(), PARTNERS[:4], r"partners have shape \(4,\).*expected int64 \(6,\)"),
        (images(), PARTNERS.float(), r"dtype torch\.float32; expected torch\.int64"),
        (images(), wrong(0, 6), "partners contain 6; expected indices 0 to 5"),
        (images(), wrong(2, -2), "partners contain -2"),
        (images(), wrong(2, 2), "partners name 2 as the partner of itself"),
    ],
)
def test_what_it_refuses_to_be_called_with(x, partners, message):
    with pytest.raises(ProblemError, match=message):
        tiny(OTViT)(x, partners=partners)


@pytest.mark.parametrize("kind", [ViT, OTViT])
def test_a_model_without_extra_templates_takes_no_partners(kind):
    model = tiny(kind, extra_preference=None)
    with pytest.raises(ProblemError, match="extra_preference=None, which takes no templates of other images"):
        model(images(), partners=PARTNERS)
    assert model(images()).shape == (BATCH, 5)
