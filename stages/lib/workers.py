"""Independent pieces of work spread over processes, with one progress bar.

Each piece is computed alone, with a thread count that is a param, so the number of processes changes no byte.
"""
import multiprocessing
import threading
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, ThreadPoolExecutor, as_completed, wait

from stages.lib import progress

tick = None  # called by the work itself: tick(n) says that n more units are done


def _join(ticks, setup, arguments):
    global tick

    def tick(amount):
        with ticks.get_lock():
            ticks.value += amount

    setup(*arguments)


def run(work, tasks, workers, setup, arguments, title, total, unit="tok"):
    """Yield `(task, work(task))` as pieces finish, in any order.

    `setup(*arguments)` runs once in each process, to load the model. `work` calls `workers.tick(n)` as it goes; `total`
    is the expected number of `unit`s, an upper bound where the work can stop early. The first error ends the rest. One
    worker, or one task, is this process itself: another would have to import torch again.
    """
    global tick
    workers = min(workers, len(tasks))
    if not tasks:
        return
    if workers <= 1:
        with progress.bar(title, total, unit) as bar:
            tick = bar.update
            setup(*arguments)
            for task in tasks:
                yield task, work(task)
        return
    context = multiprocessing.get_context("spawn")  # fork after torch has started threads can deadlock
    ticks = context.Value("q", 0)
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_join, initargs=(ticks, setup, arguments)) as pool, \
            progress.bar(title, total, unit) as bar:
        pending = {pool.submit(work, task): task for task in tasks}
        try:
            while pending:
                done, _ = wait(pending, timeout=0.5, return_when=FIRST_COMPLETED)
                bar.update(ticks.value - bar.n)
                for future in done:
                    yield pending.pop(future), future.result()
        finally:
            for future in pending:
                future.cancel()


def threads(work, tasks, count, title, total, unit="tok"):
    """As `run`, for work that waits for a server: `count` pieces at a time in threads of this process, so that the next piece
    fills the server up while the last answers of one trickle in."""
    global tick
    lock = threading.Lock()
    with progress.bar(title, total, unit) as bar, ThreadPoolExecutor(count) as pool:
        def tick(amount):
            with lock:
                bar.update(amount)

        futures = {pool.submit(work, task): task for task in tasks}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(cancel_futures=True)
