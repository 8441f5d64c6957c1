"""The rule for devices: one that torch knows and that computes here."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from fenchel.arguments.rule import AbstractRule, Unfit, shown

__all__ = ["Device"]


@dataclass(frozen=True)
class Device(AbstractRule):
    """A device on which tensors can be added, found out by adding two.

    Example:
        >>> Device().check("device", "meta")
        Traceback (most recent call last):
        fenchel.errors.InputError: device is 'meta', which computes nothing; expected one that computes here: cpu.
    """

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return f"one that computes here: {', '.join(_devices())}"

    def fit(self, value: Any) -> str:
        """See ``AbstractRule``."""
        import torch

        if not isinstance(value, str | torch.device):
            raise Unfit
        name = str(value)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                device = torch.device(value)
        except Exception:  # which type it is depends on the name
            raise Unfit(f"is {shown(name)}, which torch does not know") from None
        if device.type == "meta":
            raise Unfit(f"is {shown(name)}, which computes nothing")
        if device.type == "cpu" and device.index:
            raise Unfit(f"is {shown(name)}, and torch has one cpu")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                works = float(torch.ones(2, device=device).sum()) == 2.0
        except Exception as error:  # which type it is depends on the device
            if "out of memory" in str(error):
                raise
            works = False
        if not works:
            raise Unfit(f"is {shown(name)}, which is not here or not in this build of torch")
        return name


def _devices() -> list[str]:
    import torch

    cuda = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return [*cuda, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]
