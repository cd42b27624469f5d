"""PyTorch's time for one training step of a GPT on several processes of this machine, over Gloo: fully_shard (FSDP2, which is ZeRO stage 3)
or DistributedDataParallel. Forward, backward, clip, AdamW; prints one line of JSON.

The model, its sizes and its optimizer are gpt_step.py's; each process has its part of the batch and its own threads. Under FSDP2 each block
is a unit, as its documentation advises, and the rest of the model is one.

    python fsdp_step.py --mode fsdp --ranks 2 --threads 1
    python fsdp_step.py --mode ddp --ranks 2 --threads 1
"""

import time

PROCESS_START = time.time()

import argparse
import json
import os
import socket
import statistics

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from gpt_step import GPT, PRESETS, adamw, resident_mb


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("fsdp", "ddp", "none"), default="fsdp", help="none: one process without communication")
    parser.add_argument("--preset", choices=PRESETS, default="small", help="sizes that the arguments below may override")
    for size in PRESETS["small"]:
        parser.add_argument("--" + size, type=int)
    parser.add_argument("--ranks", type=int, default=2, help="processes")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process")
    parser.add_argument("--keep-gathered", action="store_true", help="FSDP2 keeps a block's weights from the forward to the backward pass")
    parser.add_argument("--steps", type=int, default=12, help="steps timed, after three that are not")
    args = parser.parse_args()
    sizes = {key: getattr(args, key) or value for key, value in PRESETS[args.preset].items()}
    if args.mode == "none":
        args.ranks = 1
    if sizes["batch"] % args.ranks:
        parser.error(f"--ranks {args.ranks} does not divide the batch of {sizes['batch']}")
    return args, sizes


def work(rank, args, sizes, port, started, results):
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if args.mode != "none":
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        dist.init_process_group("gloo", rank=rank, world_size=args.ranks)
    batch = sizes.pop("batch")
    model = GPT(**sizes)
    count = sum(p.numel() for p in model.parameters())
    if args.mode == "fsdp":
        mesh = init_device_mesh("cpu", (args.ranks,))
        for block in model.h:
            fully_shard(block, mesh=mesh, reshard_after_forward=not args.keep_gathered)
        fully_shard(model, mesh=mesh, reshard_after_forward=not args.keep_gathered)
    elif args.mode == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = adamw(model, lr=1e-3)
    torch.manual_seed(1 + rank)
    tokens, targets = torch.randint(0, sizes["vocab"], (2, batch // args.ranks, sizes["context"]))

    def step():
        loss = model(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    step()
    first_step_s = time.time() - started
    step(), step()
    seconds, cpu = [], time.process_time()
    for _ in range(args.steps):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
    cpu = (time.process_time() - cpu) / args.steps
    results.put((rank, seconds, cpu, first_step_s, resident_mb(), loss, count))
    if args.mode != "none":
        dist.barrier()
        dist.destroy_process_group()


def main():
    args, sizes = parse()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    processes = mp.spawn(work, (args, sizes, port, PROCESS_START, results), nprocs=args.ranks, join=False)
    ranks = sorted(results.get() for _ in range(args.ranks))
    while not processes.join():
        pass
    # All ranks wait for each other within a step: its time is the slowest rank's.
    seconds = [max(at) for at in zip(*(r[1] for r in ranks))]
    median, best = statistics.median(seconds), min(seconds)
    targets = sizes["batch"] * sizes["context"]
    print(json.dumps(dict(
        peer="pytorch", version=torch.__version__, mode=args.mode, ranks=args.ranks, threads=args.threads, **sizes, parameters=ranks[0][6],
        tokens_per_s=round(targets / median), best_tokens_per_s=round(targets / best), step_ms=round(median * 1e3, 2), best_step_ms=round(best * 1e3, 2),
        cpu_ms=round(sum(r[2] for r in ranks) * 1e3, 2), first_step_s=round(max(r[3] for r in ranks), 2),
        peak_mb=round(sum(r[4] for r in ranks)), loss=round(sum(r[5] for r in ranks) / len(ranks), 4),
    )))


if __name__ == "__main__":
    main()
