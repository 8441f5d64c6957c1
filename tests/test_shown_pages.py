"""What the README and pages of the docs show is what happens, and what they name is there."""

import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.families import BEGIN, END, TOLERANCE
from benchmarks.families import page as families_page
from benchmarks.recording import RESULTS
from fenchel import Gaussian, closeness
from fenchel import functional as F
from fenchel.functional.inference import Options
from fenchel.nn import evidence, preference
from tests.pages import page, python_blocks, run_blocks
from tests.tiny_models import DISPATCHING

ROOT = Path(__file__).parents[1]
README = page("README.md")
PYTHON = python_blocks("README.md")


@pytest.mark.parametrize("code", PYTHON, ids=["layer", "solve"])
def test_python_examples_run(code, capsys):
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102 - our own page
    printed = capsys.readouterr().out
    if "layer" in names:
        assert float((names["attended"] - names["inferred"]).detach().abs().max()) > 1e-4
        assert printed.startswith("tensor(")
    else:
        first, exact = names["attention"], names["optimum"]
        assert ((first.mean - exact.mean).norm(dim=-1) <= first.mean_error + 1e-6).all()
        assert printed.count("tensor") == 3


def test_the_page_on_closenesses(capsys: pytest.CaptureFixture[str]) -> None:
    names = run_blocks("docs/closeness.md")
    printed = capsys.readouterr().out
    assert "Tsallis(2, relative='csiszar')" in printed
    assert "ClosenessReport(Divergence(value) holds" in printed
    assert "weights are not the gradient of conjugate" in printed
    assert names["order"].grad.shape == (1,)
    assert bool((names["estimate"].weights >= 0).all())


def test_both_families_of_the_page_run(capsys):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        names = run_blocks("docs/families.md")
    printed = capsys.readouterr().out
    assert "tensor([[ 0.6667, -0.5000]], dtype=torch.float64" in printed
    assert "True torch.Size([4])" in printed
    # The mean is αz·s/(1 + αs) coordinate by coordinate, so that its derivative in s is αz/(1 + αs)².
    expected = torch.tensor([2 / 9, -2 / 4], dtype=torch.float64)
    torch.testing.assert_close(names["variance"].grad, expected)


def test_the_page_on_attention():
    torch.manual_seed(0)
    names = run_blocks("docs/attention.md")
    theirs = torch.nn.functional.scaled_dot_product_attention(
        names["query"], names["key"], names["value"], attn_mask=names["causal"]
    )
    torch.testing.assert_close(names["attention"], theirs)
    assert float((names["exact"] - names["attention"]).abs().max()) > 1e-3
    assert names["weights"].shape == (2, 4, 10, 10)
    assert names["certificate"].gap.shape == (2, 4, 10)
    assert 0.45 < float(names["zeros"]) < 1
    assert float(names["raw"].grad.abs().min()) > 0
    assert names["memory"].shape == names["settled"].shape == names["read"].shape == (2, 4, 10, 16)
    torch.testing.assert_close(names["softmax"], F.attention(names["query"], names["means"], names["means"]))
    assert names["bounds"].gap.shape == (2, 4, 10)
    assert float(names["bias"].grad.abs().max()) > 0
    assert names["alpha"].grad.shape == (4, 1)


def test_every_argument_and_every_function_is_on_the_page():
    text = page("docs/attention.md")
    arguments = {*inspect.signature(F.infer).parameters} - {"options"} | {*Options.__annotations__}
    assert [name for name in arguments if name not in text] == []
    assert [name for name in F.__all__ if name not in text and not name.startswith("Attention")] == []


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_the_page_on_layers(capsys):
    with torch.random.fork_rng(devices=[]):
        names = run_blocks("docs/layers.md")
    promised = re.findall(r"# (tensor\([^)]*\))", "".join(python_blocks("docs/layers.md")))
    printed = capsys.readouterr().out
    assert promised == ["tensor(True)"] * 4
    assert re.findall(r"tensor\((?:True|False)\)", printed) == promised
    assert "Causal() * ALiBi(" in printed
    assert "torch.Size([2, 4, 10])" in printed
    assert "Tsallis(<(4, 1)>)" in printed
    assert names["seen"].shape == names["heard"].shape == (2, 5, 32)
    assert names["density"].covariance().shape == (2, 4, 5, 2, 2)
    assert names["span"].mean().shape == (2, 4, 5, 1)
    assert names["recalled"].shape == names["measured"].shape == (2, 10, 32)
    assert names["responsibilities"].shape == (2, 10, 10)
    assert all(layer.in_proj_weight.grad.abs().max() > 0 for layer in names["model"])


@pytest.mark.filterwarnings("ignore::fenchel.errors.CostWarning")
def test_the_page_on_transport(capsys):
    with torch.random.fork_rng(devices=[]):
        run_blocks("docs/transport.md")
    promised = re.findall(r"print\(.*\)  # (.*)", "".join(python_blocks("docs/transport.md")))
    assert len(promised) >= 8
    assert capsys.readouterr().out.splitlines() == promised


def test_every_option_of_the_layer_is_named():
    from fenchel.nn import TransportAttention

    kept = {"embed_dim", "num_heads", "bias", "batch_first", "device", "dtype"}  # as in torch's own layer
    for name in TransportAttention.__init__.__annotations__.keys() - kept - {"return"}:
        assert f"`{name}`" in page("docs/transport.md"), name


PREFERENCES = page("docs/preferences.md")


def test_the_page_on_preferences(capsys):
    torch.manual_seed(0)
    names = run_blocks("docs/preferences.md")
    printed = capsys.readouterr().out.splitlines()
    said = [
        comment
        for block in python_blocks("docs/preferences.md")
        for comment in re.findall(r"print\(.*?\)  # (.*)", block)
    ]
    assert len(printed) == len(said) + 1
    for line, comment in zip(printed, said, strict=False):
        assert line.removeprefix("torch.Size(").replace("[", "(").replace("]", "").startswith(comment[:12])
    assert names["weights"].shape == (2, 10, 10)
    assert not names["weights"][..., 8:].any()
    assert (names["fused"] - names["dense"]).abs().max() < 1e-5


def test_the_page_on_evidence():
    names = run_blocks("docs/evidence.md")
    assert names["content"].evidence is not None
    assert names["output"].shape == (2, 10, 32)


@pytest.mark.parametrize(
    ("module", "text"), [(preference, PREFERENCES), (evidence, page("docs/evidence.md"))]
)
def test_every_name_is_on_the_page(module, text):
    public = {name for name in module.__all__ if not name.startswith("Abstract")} - {"ContextNetwork"}
    assert {name for name in public if name not in text} == set()


def test_names_in_the_tables_exist():
    rows = [line for line in (PREFERENCES + page("docs/evidence.md")).splitlines() if line.startswith("| ")]
    used = {
        name for row in rows for name in re.findall(r"\b([A-Z]\w+)\(", "".join(re.findall(r"`(.*?)`", row)))
    }
    assert len(used) > 15
    known = (preference, evidence, closeness)
    assert {name for name in used if not any(hasattr(module, name) for module in known)} == set()


def test_every_block_of_the_pages_runs(capsys):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pages = ("continuous", "positions", "catalogue")
        names = {name: value for page in pages for name, value in run_blocks(f"docs/{page}.md").items()}
    printed = capsys.readouterr().out
    assert "tensor([[2.3333, 1.0000]], dtype=torch.float64)" in printed
    assert "Gaussian(queries=(1,), dim=2, covariance=diagonal" in printed
    assert "torch.Size([1000, 1, 2]) torch.Size([1])" in printed
    assert "tensor(True)" in printed
    assert "0.333333\n" in printed
    assert "0.5\n0.4062\n" in printed
    assert bool(names["first"].gap > 1)
    torch.testing.assert_close(names["first"].output, names["linear"])
    assert isinstance(names["ellipse"], Gaussian)
    assert 0.5 < float(names["ellipse"].mean()[0, 0]) < 0.7
    assert 2 < float(names["longer"].solve("exact").mean) < 5
    assert int(names["found"].mean.argmax()) == 2
    moved = (names["mixture"].distribution.means[0] - names["keys"]).norm(dim=-1)
    torch.testing.assert_close(moved[1] / moved[0], torch.tensor(40.0, dtype=torch.float64))


def test_the_table_of_densities_names_every_family():
    import fenchel.preference

    table = page("docs/continuous.md").split("| family |")[1].split("\n\n")[0]
    of_tilts = {"AbstractPreference", "Tilted", "AsymmetricLaplace", "TruncatedExponential"}
    named = [name for name in fenchel.preference.__all__ if f"`{name}(" in table or f"`{name}`" in table]
    assert set(fenchel.preference.__all__) - of_tilts == set(named)


def test_the_page_on_transformers(capsys):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        names = run_blocks("docs/transformers.md")
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    assert printed[0].startswith("('encoder.layer.0.attention.self', 'encoder.layer.1.attention.self')")
    assert not torch.equal(names["exact"], names["second"])
    assert not torch.equal(names["exact"], names["mixed"])
    assert bool((names["sparse"][1, ..., 3] == 0).all())
    assert not torch.equal(names["partly"], names["exact"])
    assert names["alpha"].grad.abs().min() > 0


def test_the_list_of_families_is_that_of_the_results_and_has_every_family_that_is_tested():
    found = json.loads((RESULTS / "families.json").read_text())
    assert f"{BEGIN}\n{families_page(found)}\n{END}" in page("docs/transformers.md")
    named = {"clip_text": "clip_text_model"}
    assert {named.get(family, family) for family in DISPATCHING} <= found["works"].keys()
    assert max(found["works"].values()) <= TOLERANCE
    assert not found["wrong"]
