"""PyTorch twin of recipes/quickstart.star: a byte-level GPT on the Go standard library's source. Prints one line of JSON.

The same model, data, batch, optimizer and schedule as the recipe, in one process at PyTorch's best settings (fused AdamW,
fused attention, batches cut with one indexing operation). It holds out the very files that the recipe does; initial values
and the order of the samples differ, so losses agree only to a few hundredths.

tokens_per_s and seconds cover the training steps alone: reading the data, compiling, the first forward and backward pass and the
evaluation stay outside.

    python quickstart_torch.py --threads 2
    python quickstart_torch.py --threads 2 --compile
"""

import time

PROCESS_START = time.perf_counter()

import argparse
import hashlib
import json
import math
import os
import pathlib
import subprocess

import numpy as np
import torch
import torch.nn as nn

from gpt_step import GPT, adamw, add_model_arguments, model_options, resident_mb

EVAL_BATCHES, EVAL_BATCH = 16, 16
HOLDOUT = 0.02


def read_corpus():
    """The number of Go files under $GOROOT/src, and their bytes in two streams: to train on, and held out.

    As in the recipe, a file is held out when the first eight bytes of the SHA-256 of its path relative to src are below
    HOLDOUT * 2**64, and a zero byte follows each file.
    """
    root = os.environ.get("GOROOT") or subprocess.check_output(["go", "env", "GOROOT"], text=True).strip()
    source = pathlib.Path(root, "src")
    # A folder named *.go exists there too.
    paths = {path.relative_to(source).as_posix(): path for path in source.rglob("*.go") if path.is_file()}
    train, held_out = [], []
    for name in sorted(paths, key=str.encode):
        hashed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
        (held_out if hashed < HOLDOUT * 2**64 else train).append(paths[name].read_bytes() + b"\0")
    return len(paths), *(np.frombuffer(b"".join(stream), np.uint8) for stream in (train, held_out))


class Samples:
    """Windows of a stream, one every context bytes, in a random order without repetition until all were seen."""

    def __init__(self, stream, context, seed):
        self.stream, self.offsets = stream, np.arange(context + 1)
        self.rng = np.random.default_rng(seed)
        self.starts = context * np.arange((len(stream) - 1) // context)
        self.next = len(self.starts)

    def batch(self, size):
        """Tokens and targets [size, context]."""
        if self.next + size > len(self.starts):
            self.rng.shuffle(self.starts)
            self.next = 0
        starts = self.starts[self.next : self.next + size]
        self.next += size
        windows = torch.from_numpy(self.stream[starts[:, None] + self.offsets].astype(np.int64))
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def rate(step, peak, warmup, total):
    """Linear warm-up, then a cosine to a tenth of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup))))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in dict(steps=1800, width=128, layers=3, heads=4, context=128, batch=16, warmup=30, seed=0).items():
        parser.add_argument("--" + name, type=int, default=value)
    add_model_arguments(parser)
    parser.add_argument("--lr", type=float, default=6e-3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--compile", action="store_true", help="torch.compile instead of eager (needs a C++ compiler)")
    return parser.parse_args()


def main():
    args = parse()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)

    start = time.perf_counter()
    files, train, held_out = read_corpus()
    samples, eval_samples = Samples(train, args.context, args.seed), Samples(held_out, args.context, seed=1)
    data_s = time.perf_counter() - start

    model = GPT(args.layers, args.width, args.heads, args.context, vocab=256, **model_options(args))
    optimizer = adamw(model, args.lr)
    forward = torch.compile(model) if args.compile else model

    # One pass without an update compiles, allocates and warms the caches.
    forward(*samples.batch(args.batch)).backward()
    optimizer.zero_grad()
    ready_s = time.perf_counter() - PROCESS_START - data_s

    start = time.perf_counter()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate(step, args.lr, args.warmup, args.steps)
        loss = forward(*samples.batch(args.batch))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        train_loss = loss.item()
    seconds = time.perf_counter() - start

    with torch.no_grad():
        losses = [model(*eval_samples.batch(EVAL_BATCH)).item() for _ in range(EVAL_BATCHES)]
    tokens = args.steps * args.batch * args.context
    print(json.dumps(dict(
        peer="pytorch", version=torch.__version__, mode="compiled" if args.compile else "eager", threads=args.threads,
        steps=args.steps, width=args.width, layers=args.layers, heads=args.heads, context=args.context, batch=args.batch,
        **model_options(args), lr=args.lr, seed=args.seed, parameters=sum(p.numel() for p in model.parameters()), files=files,
        train_bytes=len(train), held_out_bytes=len(held_out), data_index_s=round(data_s, 2), ready_s=round(ready_s, 2),
        tokens=tokens, seconds=round(seconds, 2), tokens_per_s=round(tokens / seconds),
        train_loss=round(train_loss, 4), eval_loss=round(float(np.mean(losses)), 4), peak_rss_mb=round(resident_mb()),
    )))


if __name__ == "__main__":
    main()
