"""joblib by posse: `Parallel` whose calls run in executors. Needs `joblib`, which this module does not install.

    import joblib, posse.joblib

    with joblib.parallel_config("posse", n_jobs=-1, max_workers=4, dev=True):
        print(joblib.Parallel()(joblib.delayed(pow)(n, 2) for n in range(10)))

What stands behind "posse" are the arguments of `posse.futures.PosseExecutor`; `executor` gives one that is there already.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Callable, Optional, Set

from joblib import register_parallel_backend
from joblib.parallel import AutoBatchingMixin, ParallelBackendBase

from .futures import PosseExecutor


class PosseBackend(AutoBatchingMixin, ParallelBackendBase):
    """Makes joblib's batches of calls in a `PosseExecutor`, whose workers stay from one `Parallel` to the next."""

    supports_retrieve_callback = True
    supports_return_generator = True
    default_n_jobs = -1

    def __init__(self, executor: Optional[PosseExecutor] = None, nesting_level: Optional[int] = None, **arguments: Any) -> None:
        super().__init__(nesting_level=nesting_level)
        self._executor, self._arguments = executor, arguments
        self._open: Set[Future[Any]] = set()

    def _get(self) -> PosseExecutor:
        if self._executor is None:
            self._executor = PosseExecutor(**self._arguments)
        return self._executor

    def effective_n_jobs(self, n_jobs: Optional[int]) -> int:
        """How many calls run at once: with -1 as many as there may be workers."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        most = self._get().max_workers
        return most if n_jobs is None or n_jobs < 0 else min(n_jobs, most)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **_: Any) -> int:
        """Called by joblib when a `Parallel` begins."""
        self.parallel = parallel
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Callable[[], Any], callback: Optional[Callable[[Any], Any]] = None) -> Any:
        """Makes one batch of calls."""
        future = self._get().submit(func)
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Any) -> Any:
        """What a batch returned. Raises what one of its calls raised."""
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """Ends the calls that wait. Those that run end by themselves."""
        for future in [*self._open]:
            future.cancel()

    def terminate(self) -> None:
        """Called by joblib when a `Parallel` has ended."""
        self.reset_batch_stats()


register_parallel_backend("posse", PosseBackend)
