"""What a step costs beside the backward pass: processor time of one process, for MLPs with 10⁵ and 10⁶ parameters.

    python overhead.py [--repeats 40] [--out docs/training]

Batches of 256 rows, k = d/100.  Forward pass, backward pass and step are measured in turns; each has the shortest time
of all turns, as others on the machine slow down some.  The overhead of feedback is that beyond its two forward passes
and one backward pass.  --out writes overhead.csv.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from stepsize_opt.torch import compress

CASES: dict[str, dict[str, Any]] = {
    "feedback": {},
    "feedback, low rank": {"curvature": "low-rank"},
    "feedback, plain coordinates": {"curvature": "none"},
    "momentum": {"method": "momentum"},
    "subspace": {"method": "subspace"},
    "det-CGD1": {"method": "det-CGD1"},
}
LOSS = nn.CrossEntropyLoss()


def network(hidden: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for a, b in zip((784, *hidden), (*hidden, 10), strict=True):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def measure(hidden: tuple[int, ...], repeats: int) -> Iterator[dict[str, Any]]:
    """The rows of the table for one network."""
    inputs, labels = torch.randn(2048, 784), torch.randint(0, 10, (2048,))
    batch, labels_of_it = inputs[:256], labels[:256]
    model = network(hidden)
    d = sum(p.numel() for p in model.parameters())

    def forward() -> torch.Tensor:
        return LOSS(model(batch), labels_of_it)

    def both() -> None:
        model.zero_grad()
        forward().backward()

    for name, options in CASES.items():
        own = network(hidden)
        start = time.process_time()
        optimizer = compress(own, LOSS, (inputs, labels), floats_per_step=d // 100, verbose=False, **options)
        setup = time.process_time() - start

        def one_step(own: nn.Module = own, optimizer: Any = optimizer) -> None:
            optimizer.step(lambda: LOSS(own(batch), labels_of_it))

        taken = [[seconds(call) for call in (forward, both, one_step)] for _ in range(repeats + 1)]
        ahead, whole, step = 1e3 * np.min(taken[1:], axis=0)
        more = step - whole - (ahead if name.startswith("feedback") else 0.0)
        yield {
            "d": d,
            "method": name,
            "set-up, s": f"{setup:.1f}",
            "step, ms": f"{step:.1f}",
            "overhead, ms": f"{more:.1f}",
            "over backward": f"{more / (whole - ahead):.2f}",
            "over forward and backward": f"{more / whole:.2f}",
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40, help="steps that are measured")
    parser.add_argument("--out", type=Path, help="folder of overhead.csv")
    given = parser.parse_args()
    torch.set_num_threads(1)
    table = pd.DataFrame([row for hidden in ((128,), (784, 480)) for row in measure(hidden, given.repeats)])
    print(table.to_string(index=False))
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")
    if given.out is not None:
        table.to_csv(given.out / "overhead.csv", index=False)


if __name__ == "__main__":
    main()
