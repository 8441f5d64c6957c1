"""What a reward is expected to be: the moving average that REINFORCE compares rewards with."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fenchel.arguments.tensor import checked_argument

__all__ = ["RewardBaseline"]


class RewardBaseline(nn.Module):
    r"""The moving average b of rewards, :math:`b \leftarrow \beta b + (1 - \beta)\, \bar r`; the first mean begins it.

    It is a buffer, so that checkpoints hold it and a training that is resumed goes on with it.

    Args:
        decay: β in [0, 1).

    Raises:
        ProblemError: If it is none.

    Reference:
        Xu et al. 2015, Show, attend and tell, section 4.1.

    Example:
        >>> baseline = RewardBaseline(decay=0.9)
        >>> [round(baseline(torch.tensor([reward])).item(), 3) for reward in (-2.0, -1.0, -1.0)]
        [-2.0, -2.0, -1.9]
    """

    average: Tensor
    begun: Tensor

    def __init__(self, decay: float = 0.9) -> None:
        super().__init__()
        self.decay = checked_argument("momentum", decay, name="decay of RewardBaseline")
        self.register_buffer("average", torch.zeros(()))
        self.register_buffer("begun", torch.zeros(()))

    @torch.no_grad()
    def forward(self, rewards: Tensor) -> Tensor:
        """What was expected before these rewards, a scalar; in training they then count, those of all processes.

        It does not depend on the rewards that it is compared with, but for the very first ones, so that it leaves the
        mean of a gradient as it is.

        Args:
            rewards: Of any shape, at least one.
        """
        sums = torch.stack((rewards.sum(), rewards.new_tensor(float(rewards.numel())))).to(self.average.dtype)
        if self.training and dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums)
        mean = sums[0] / sums[1]
        expected = torch.where(self.begun > 0, self.average, mean)
        if self.training:
            self.average.copy_(self.decay * expected + (1 - self.decay) * mean)
            self.begun.fill_(1.0)
        return expected

    def extra_repr(self) -> str:
        """How slowly it forgets."""
        return f"decay={self.decay:g}"
