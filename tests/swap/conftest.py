"""What several tests of swaps look at."""

from collections.abc import Iterator

import pytest

from fenchel.swap import SwapReport
from tests.auditing.small_audits import still_clock
from tests.swap.small_swaps import small_swap


@pytest.fixture(autouse=True, scope="session")
def same_times() -> Iterator[None]:
    """Swaps that are made again leave the same bytes."""
    with still_clock():
        yield


@pytest.fixture(scope="session")
def masked(same_times: None) -> SwapReport:
    """A swap of a masked language model, each layer and head alone too; not to be changed."""
    del same_times
    return small_swap("bert", per_layer=True, per_head=True)
