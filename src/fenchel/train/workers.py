"""The processes of a training: one, or those that ``torchrun`` started."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from fenchel.arguments import checked
from fenchel.errors import InputError

__all__ = ["Workers", "joined_workers"]


@dataclass(frozen=True)
class Workers:
    """This process among all.

    Attributes:
        rank: Its number, from 0.
        count: How many there are.
        device: Where it computes.
    """

    rank: int
    count: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.count > 1:
            dist.all_reduce(values)
        return values

    def rows(self, values: Tensor) -> Tensor:
        """The rows of all processes, of the first one first."""
        if self.count == 1:
            return values
        counts = torch.zeros(self.count, dtype=torch.int64, device=self.device)
        counts[self.rank] = len(values)
        first, last = self.sum(counts)[: self.rank].sum(), int(counts.sum())
        whole = values.new_zeros(last, *values.shape[1:])
        whole[int(first) : int(first) + len(values)] = values
        return self.sum(whole)

    def said_by_leader(self, word: bool) -> bool:
        """What the first process says, in every process."""
        if self.count == 1:
            return word
        flag = torch.tensor(float(word), device=self.device)
        dist.broadcast(flag, 0)
        return bool(flag.item())

    def share(self, model: nn.Module) -> nn.Module:
        """The model with gradients averaged over the processes; itself where there is one."""
        if self.count == 1:
            return model
        return nn.parallel.DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
        )


@contextlib.contextmanager
def joined_workers(device: str | None) -> Iterator[Workers]:
    """Joins the process group that ``torchrun`` announces in the environment, and leaves it when the process ends.

    A group that there is already, the caller's or that of an earlier training, is used and left as it is.

    Args:
        device: Where to compute. Default: a GPU if there is one (with several processes, that of ``LOCAL_RANK``),
            else the processor.

    Yields:
        This process among all.

    Raises:
        InputError: If the device is unknown, or the environment is incomplete.
    """
    count = _from_environment("WORLD_SIZE", 1)
    rank = _from_environment("RANK", 0)
    chosen = _device(device, _from_environment("LOCAL_RANK", 0) if count > 1 else None)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if dist.is_available() and dist.is_initialized():
        yield Workers(dist.get_rank(), dist.get_world_size(), chosen)
        return
    if count == 1:
        yield Workers(0, 1, chosen)
        return
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        if name not in os.environ:
            raise InputError(
                f"WORLD_SIZE is {count}, but {name} is not set. Start several processes with torchrun, or unset "
                "WORLD_SIZE."
            )
    if chosen.type == "cuda":
        dist.init_process_group("nccl", device_id=chosen)
    else:
        dist.init_process_group("gloo")
    # Kept for the next training of this process: a second group over the same store waits for the first one's keys.
    atexit.register(dist.destroy_process_group)
    yield Workers(rank, count, chosen)


def _from_environment(name: str, default: int) -> int:
    text = os.environ.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise InputError(f"the environment's {name} is {text!r}; expected a whole number.") from None


def _device(name: str | None, local_rank: int | None) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name not in (None, "cuda") or not count:
        return torch.device("cpu" if name is None else checked("device", name))
    if local_rank is not None:
        # Asked about all processes of the machine, so that all of them say the same.
        processes = max(_from_environment("LOCAL_WORLD_SIZE", 1), local_rank + 1)
        if processes > count:
            raise InputError(
                f"there are {processes} processes on this machine, and {count} CUDA devices for them. Start at most as "
                "many as there are devices, or use --device cpu."
            )
    return torch.device("cuda", local_rank or 0)
