"""The same work on many items, in several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

from stepsize_opt.inputs import whole_number

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def in_processes(work: Callable[[Item], Answer], items: Sequence[Item], workers: int) -> Iterator[tuple[Item, Answer]]:
    """Each item with its answer, as they come; one thread for each process.

    Raises ValueError when ``workers`` is not a positive whole number.
    """
    if whole_number("workers", workers) == 1:
        yield from ((item, _in_one_thread(work, item)) for item in items)
        return
    # Spawned, because a fork after numerical libraries have started their threads can hang.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(_in_one_thread, work, item): item for item in items}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _in_one_thread(work: Callable[[Item], Answer], item: Item) -> Answer:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        return work(item)
