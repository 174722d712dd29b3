"""One rank: prints its number, its part of the sum, and the executor in which it runs."""
import os

rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
part = sum(i * i for i in range(rank, 10_000_000, size))
print(rank, part, os.environ["POSSE_EXECUTOR_ID"], flush=True)
