"""What docs/families.md shows is what happens."""

import torch

from tests.pages import run_blocks


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
