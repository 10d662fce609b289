"""What a step costs beside the backward pass: processor time of one process, for MLPs with 10⁵ and 10⁶ parameters.

    python overhead.py [--repeats 20]

Batches of 256 rows, k = d/100.  The overhead of feedback is that beyond its two forward passes and one backward pass.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

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


def network(hidden: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for a, b in zip((784, *hidden), (*hidden, 10), strict=True):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def milliseconds(call: Callable[[], Any], repeats: int) -> float:
    call()
    start = time.process_time()
    for _ in range(repeats):
        call()
    return 1e3 * (time.process_time() - start) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="steps that are measured")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    loss = nn.CrossEntropyLoss()
    inputs, labels = torch.randn(2048, 784), torch.randint(0, 10, (2048,))
    batch = inputs[:256], labels[:256]
    print("| d | method | set-up, s | step, ms | overhead, ms | over backward | over forward and backward |")
    print("|---:|---|---:|---:|---:|---:|---:|")
    for hidden in ((128,), (784, 480)):
        model = network(hidden)
        d = sum(p.numel() for p in model.parameters())

        def forward(model: nn.Module = model) -> torch.Tensor:
            return loss(model(batch[0]), batch[1])

        def both(model: nn.Module = model, forward: Any = forward) -> None:
            model.zero_grad()
            forward().backward()

        ahead, whole = milliseconds(forward, repeats), milliseconds(both, repeats)
        for name, options in CASES.items():
            model = network(hidden)
            start = time.process_time()
            optimizer = compress(model, loss, (inputs, labels), floats_per_step=d // 100, verbose=False, **options)
            setup = time.process_time() - start
            step = milliseconds(
                lambda model=model, o=optimizer: o.step(lambda: loss(model(batch[0]), batch[1])), repeats
            )
            more = step - whole - (ahead if name.startswith("feedback") else 0.0)
            ratios = f"{more / (whole - ahead):.2f} | {more / whole:.2f}"
            print(f"| {d} | {name} | {setup:.1f} | {step:.1f} | {more:.1f} | {ratios} |", flush=True)
    print(f"largest memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB")


if __name__ == "__main__":
    main()
