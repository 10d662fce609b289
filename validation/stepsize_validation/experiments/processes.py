"""The same work on many items, in several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import active_children, get_context
from typing import TypeVar

from stepsize_opt.inputs import whole_number
from stepsize_solvers.process import interrupts_held

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
    others = set(active_children())
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        with interrupts_held():
            futures = {pool.submit(_in_one_thread, work, item): item for item in items}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            # What is not done will not be asked for: do not wait for it.
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(active_children()) - others:
                process.terminate()
            raise


def _in_one_thread(work: Callable[[Item], Answer], item: Item) -> Answer:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        return work(item)
