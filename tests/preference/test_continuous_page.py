"""What docs/continuous.md, docs/positions.md and docs/catalogue.md show is what happens."""

import torch

from fenchel import Gaussian
from tests.pages import page, run_blocks


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


def test_the_table_names_every_family():
    import fenchel.preference

    table = page("docs/continuous.md").split("| family |")[1].split("\n\n")[0]
    of_tilts = {"AbstractPreference", "Tilted", "AsymmetricLaplace", "TruncatedExponential"}
    named = [name for name in fenchel.preference.__all__ if f"`{name}(" in table or f"`{name}`" in table]
    assert set(fenchel.preference.__all__) - of_tilts == set(named)
