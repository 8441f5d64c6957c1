"""What a layer keeps of its last call, if it was asked to."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor

from fenchel.errors import NotKeptError
from fenchel.functional.certificate import AttentionCertificate

__all__ = ["LastCall"]

_PROPERTIES = ("last_certificate", "last_gap", "last_norm_penalty")
_STORED = tuple(f"_{name}" for name in _PROPERTIES)

_Kept = TypeVar("_Kept")


class LastCall:
    """The part of a layer that remembers. It comes before ``torch.nn.Module`` among the bases of a layer."""

    _last_certificate: AttentionCertificate | None = None
    _last_gap: Tensor | None = None
    _last_norm_penalty: Tensor | None = None

    def forget_last_call(self) -> None:
        """Let go of what was kept, and of the graphs that it holds on to."""
        for name in _STORED:
            # A layer that keeps nothing does not change when it is called, which is what can be exported.
            if getattr(self, name) is not None:
                setattr(self, name, None)

    @property
    def last_certificate(self) -> AttentionCertificate:
        """How far at most the last call was from exact: three tensors (N, H, L), or (H, L) unbatched, without gradient.

        They are a record: in a loss they change nothing. :attr:`last_gap` is for losses.

        Raises:
            NotKeptError: If ``keep_certificate`` was not set when the layer was last called.
        """
        return self._kept_by_last_call("certificate", self._last_certificate)

    @property
    def last_gap(self) -> Tensor:
        """The certificate's gap of the last call, (N, H, L), or (H, L) unbatched, with gradient.

        It holds on to the graph of that call until the next one.

        Raises:
            NotKeptError: If ``keep_gap`` was not set when the layer was last called.
        """
        return self._kept_by_last_call("gap", self._last_gap)

    @property
    def last_norm_penalty(self) -> Tensor:
        r"""Mean of :math:`\frac\alpha2\operatorname{tr}\operatorname{Cov}_u(t)` over the last call, with gradient.

        It holds on to the graph of that call until the next one.

        Raises:
            NotKeptError: If ``keep_norm_penalty`` was not set when the layer was last called.
        """
        return self._kept_by_last_call("norm penalty", self._last_norm_penalty)

    def _kept_by_last_call(self, what: str, kept: _Kept | None) -> _Kept:
        if kept is None:
            raise NotKeptError(
                f"there is no {what} of a last call; set keep_{what.replace(' ', '_')} = True on the layer, then call "
                "it"
            )
        return kept

    def __getattr__(self, name: str) -> Any:
        # Python comes here when a property raises an AttributeError, which torch's own would replace by another.
        if name in _PROPERTIES:
            return getattr(type(self), name).fget(self)
        return super().__getattr__(name)  # pyright: ignore[reportAttributeAccessIssue]

    def __getstate__(self) -> dict[str, Any]:
        # What a call leaves behind is not the layer's, and a tensor with a graph cannot be copied.
        return {name: value for name, value in self.__dict__.items() if name not in _STORED}
