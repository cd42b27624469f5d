"""All-reduce of torch.distributed over Gloo, for comparison with `runtime bench comm`.

One process per rank, started by this script. Sizes in bytes of float32 on the command line or, with --serve, one per line
on standard input, each answered by one line of JSON: {"bytes": …, "seconds": …, "best": …}: the median over the
repetitions of the slowest rank's time, and the least of them. --serve lets the caller interleave the measurements with its own.

    python3 gloo_allreduce.py --ranks 2 4096 1048576
"""

import argparse
import json
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def measure(size, seconds):
    """Times one size on every rank; rank 0 decides how often."""
    x = torch.ones(max(size // 4, 1))
    dist.all_reduce(x)
    dist.barrier()
    t = time.perf_counter()
    for _ in range(2):
        dist.all_reduce(x)
    once = torch.tensor([(time.perf_counter() - t) / 2])
    dist.broadcast(once, 0)
    reps = int(min(max(seconds / max(once.item(), 1e-7), 5), 2000))
    times = torch.zeros(reps, dtype=torch.float64)
    for i in range(reps):
        t = time.perf_counter()
        dist.all_reduce(x)
        times[i] = time.perf_counter() - t
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return statistics.median(times.tolist()), times.min().item()


def rank_main(rank, ranks, port, sizes, serve, seconds):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    if rank == 0 and serve:
        sys.stdin = os.fdopen(int(os.environ["PEER_STDIN"]))
        print(json.dumps({"ready": True}), flush=True)
    queue = list(sizes)
    while True:
        size = torch.zeros(1, dtype=torch.int64)
        if rank == 0:
            if serve:
                line = sys.stdin.readline().strip()
                size[0] = int(line) if line else -1
            else:
                size[0] = queue.pop(0) if queue else -1
        dist.broadcast(size, 0)
        if size.item() < 0:
            break
        median, best = measure(size.item(), seconds)
        if rank == 0:
            print(json.dumps({"bytes": size.item(), "seconds": median, "best": best}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--port", type=int, default=0, help="where the ranks meet; 0 for any free one")
    p.add_argument("--seconds", type=float, default=0.3, help="time spent on each size")
    p.add_argument("--serve", action="store_true")
    p.add_argument("sizes", type=int, nargs="*")
    a = p.parse_args()
    if a.port == 0:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            a.port = free.getsockname()[1]
    os.environ["PEER_STDIN"] = str(os.dup(0))
    os.set_inheritable(int(os.environ["PEER_STDIN"]), True)
    ctx = mp.get_context("fork")
    procs = [ctx.Process(target=rank_main, args=(r, a.ranks, a.port, a.sizes, a.serve, a.seconds)) for r in range(a.ranks)]
    for q in procs:
        q.start()
    for q in procs:
        q.join()
    sys.exit(max(q.exitcode or 0 for q in procs))
