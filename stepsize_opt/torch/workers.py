"""The processes of a run, and the bytes that they exchange."""

# pyright: reportMissingImports=false
from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

if dist.is_available():
    # Its functions have the group of the time of their import as a default.  Optimizers import them, and a group that
    # they hold is not ended by destroy_process_group: a thread of gloo may then abort the process at its exit.
    import torch.distributed.nn


class Workers:
    """The processes of a group, or this process alone where torch.distributed was not initialised.

    Attributes
    ----------
    sent, received : int
        Bytes of the messages of this process, and of those that it received.  A sum over all processes counts once in
        each direction, as it would with a server.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.sent = self.received = 0

    @staticmethod
    def of(group: Any) -> Workers:
        """The workers of a process group; a ``Workers`` is returned as it is, so that tests can simulate them."""
        return group if isinstance(group, Workers) else Workers(group)

    @property
    def group(self) -> Any:
        """The process group, looked up at each use so that nothing here outlives it; None for one process."""
        if self._group is not None:
            return self._group
        return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None

    @property
    def size(self) -> int:
        return 1 if self.group is None else dist.get_world_size(self.group)

    @property
    def rank(self) -> int:
        return 0 if self.group is None else dist.get_rank(self.group)

    def mean(self, tensor: Tensor) -> Tensor:
        """The mean over the processes, by one all-reduce; the tensor itself holds it."""
        self.sent += tensor.nbytes
        self.received += tensor.nbytes
        if self.size > 1 and tensor.numel():
            dist.all_reduce(tensor, group=self.group)
            tensor /= self.size
        return tensor

    def means(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The means of several tensors, by one all-reduce where they have one dtype and device."""
        kinds = {(tensor.dtype, tensor.device) for tensor in tensors}
        if len(kinds) != 1:
            return [self.mean(tensor) for tensor in tensors]
        whole = self.mean(torch.cat(list(tensors)))
        return list(torch.split(whole, [tensor.numel() for tensor in tensors]))

    def symmetric_mean(self, matrix: Tensor) -> Tensor:
        """The mean of a symmetric matrix, of which one triangle is sent."""
        triangle = tuple(torch.triu_indices(*matrix.shape))
        out = torch.zeros_like(matrix)
        out[triangle] = self.mean(matrix[triangle])
        return out + out.triu(1).T

    def broadcast(self, tensor: Tensor, source: int) -> Tensor:
        """The tensor of the process ``source``; those of the others are overwritten."""
        if self.rank == source:
            self.sent += tensor.nbytes
        else:
            self.received += tensor.nbytes
        if self.size > 1:
            dist.broadcast(tensor, dist.get_global_rank(self.group, source), group=self.group)
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, in their order."""
        out = [torch.empty_like(tensor) for _ in range(self.size)]
        self.sent += tensor.nbytes
        self.received += (self.size - 1) * tensor.nbytes
        if self.size == 1:
            return [tensor]
        dist.all_gather(out, tensor, group=self.group)
        return out

    def equal(self, *values: Any, device: Any = None) -> bool:
        """Whether all processes passed equal numbers, texts and tensors; compares 8 bytes, which are not counted."""
        if self.size == 1:
            return True
        number = digest(*values)
        mine = torch.tensor([number], dtype=torch.int64, device=device)
        everybody = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(everybody, mine, group=self.group)
        return all(torch.equal(one, mine) for one in everybody)


def digest(*values: Any) -> int:
    """8 bytes of a hash of numbers, texts and tensors."""
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, Tensor):
            found.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            found.update(repr(value).encode())
    return int.from_bytes(found.digest()[:8], "little", signed=True)
