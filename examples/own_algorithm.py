"""An algorithm of your own against ring and NCCL's choice, on the eight GPUs of an HGX H100.

The schedule is proved to compute an all-reduce before it is timed, as one kernel with NCCL's primitives.
"""

import simcoll as sc


@sc.register("all_reduce", "two_halves", chunks=lambda request: 2)
def two_halves(request):
    """Each half of the buffer is reduced on one rank, and sent to all from there: 2 steps."""
    n = request.n
    for reduce in (True, False):
        for half, home in enumerate((0, n // 2)):
            others = [rank for rank in range(n) if rank != home]
            yield sc.send(others, home, half, reduce=True) if reduce else sc.send(home, others, half)


sc.prove(sc.build("all_reduce", "two_halves", 8))
results = sc.run(
    topology="hgx-h100",
    collective="all_reduce",
    algorithm=["auto", "ring", "two_halves"],
    size={"from": "1 KiB", "to": "64 MiB", "factor": 16},
)
print(results)
results.plot(x="size", y="time").figure.savefig("own_algorithm.png")
