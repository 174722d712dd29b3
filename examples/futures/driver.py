"""Counts primes: 200 calls by `concurrent.futures`, then 200 by joblib if it is installed, in the same workers."""

from posse.futures import PosseExecutor
from primes import primes

STARTS, SIZE = range(0, 500_000, 2_500), 2_500

with PosseExecutor() as executor:
    print("futures", sum(executor.map(primes, STARTS, [SIZE] * len(STARTS))), flush=True)
    try:
        import joblib
        import posse.joblib
    except ImportError:
        print("joblib is not installed")
    else:
        with joblib.parallel_config("posse", n_jobs=-1, executor=executor):
            print("joblib", sum(joblib.Parallel()(joblib.delayed(primes)(start, SIZE) for start in STARTS)), flush=True)
