"""What several tests of swaps look at."""

from __future__ import annotations

import pytest

from fenchel.swap import SwapReport
from tests.swap.small_swaps import small_swap


@pytest.fixture(scope="session")
def masked() -> SwapReport:
    """A swap of a masked language model, each layer and head alone too; not to be changed."""
    return small_swap("bert", per_layer=True, per_head=True)
