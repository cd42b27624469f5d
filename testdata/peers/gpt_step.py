"""PyTorch's time for one training step of a GPT on the CPU: forward, backward, clip, AdamW. Prints one line of JSON.

Pre-norm, fused causal attention, head tied to the token table, in one of two families: "gpt" (LayerNorm, biases, tanh
GELU over four widths, learned or rotary positions) and "llama" (RMSNorm, no biases, SwiGLU over 8/3 widths rounded up to
a multiple of 32, rotary positions). PyTorch runs at its best documented settings for one machine: fused AdamW, fused
attention, autocast for bf16, torch.compile on request (needs a C++ compiler).

    python gpt_step.py --preset small --precision bf16 --compile --threads 2
    python gpt_step.py --layers 3 --width 96 --heads 4 --context 64 --batch 32
"""

import time

PROCESS_START = time.perf_counter()

import argparse
import json
import math
import os
import resource
import statistics

import torch
import torch.nn as nn
import torch.nn.functional as F

PRESETS = {
    "quickstart": dict(layers=3, width=128, heads=4, context=128, vocab=256, batch=16),
    "small": dict(layers=6, width=384, heads=6, context=256, vocab=256, batch=12),
    "124m": dict(layers=12, width=768, heads=12, context=64, vocab=50304, batch=4),
}


class Rotary(nn.Module):
    """Turns element j of a head's first half with element j of its second half, by position * 10000**(-2j/size)."""

    def __init__(self, size, context):
        super().__init__()
        angle = torch.arange(context)[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)
        self.register_buffer("cos", angle.cos().repeat(1, 2), persistent=False)
        self.register_buffer("sin", torch.cat((-angle.sin(), angle.sin()), -1), persistent=False)

    def forward(self, x):
        time, half = x.shape[-2], x.shape[-1] // 2
        return x * self.cos[:time] + x.roll(half, -1) * self.sin[:time]


class Block(nn.Module):
    def __init__(self, family, width, heads, rotary):
        super().__init__()
        self.heads, self.rotary = heads, rotary
        gated = family == "llama"
        hidden = math.ceil(8 * width / 3 / 32) * 32 if gated else 4 * width
        self.norm_1, self.norm_2 = norm(family, width), norm(family, width)
        self.qkv, self.proj = nn.Linear(width, 3 * width, not gated), nn.Linear(width, width, not gated)
        self.gate = nn.Linear(width, hidden, False) if gated else None
        self.up, self.down = nn.Linear(width, hidden, not gated), nn.Linear(hidden, width, not gated)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (z.view(batch, time, self.heads, -1).transpose(1, 2) for z in self.qkv(self.norm_1(x)).split(width, -1))
        if self.rotary is not None:
            q, k = self.rotary(q).to(v.dtype), self.rotary(k).to(v.dtype)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, time, width))
        z = self.norm_2(x)
        if self.gate is not None:
            return x + self.down(F.silu(self.gate(z)) * self.up(z))
        return x + self.down(F.gelu(self.up(z), approximate="tanh"))


def norm(family, width):
    return nn.LayerNorm(width) if family == "gpt" else nn.RMSNorm(width, eps=1e-5)


class GPT(nn.Module):
    """Tables start at a deviation of 0.02, what adds to the residual stream at 0.02/sqrt(2 layers)."""

    def __init__(self, layers, width, heads, context, vocab, family="gpt", positions="learned"):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Embedding(context, width) if positions == "learned" else None
        rotary = Rotary(width // heads, context) if positions == "rotary" else None
        self.h = nn.ModuleList(Block(family, width, heads, rotary) for _ in range(layers))
        self.norm_f = norm(family, width)
        nn.init.normal_(self.wte.weight, std=0.02)
        if self.wpe is not None:
            nn.init.normal_(self.wpe.weight, std=0.02)
        for block in self.h:
            for linear in (block.proj, block.down):
                nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * layers))

    def forward(self, tokens, targets):
        """The mean loss in nats per token."""
        x = self.wte(tokens)
        if self.wpe is not None:
            x = x + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        logits = F.linear(self.norm_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def adamw(model, lr, weight_decay=0.1):
    """Fused AdamW that decays tensors of two or more dimensions."""
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [dict(params=decayed, weight_decay=weight_decay), dict(params=others, weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), eps=1e-8, fused=True)


def add_model_arguments(parser):
    parser.add_argument("--family", choices=("gpt", "llama"), default="gpt")
    parser.add_argument("--positions", choices=("learned", "rotary"), help="by default learned in gpt, rotary in llama")


def model_options(args):
    return dict(family=args.family, positions=args.positions or ("learned" if args.family == "gpt" else "rotary"))


def resident_mb():
    """Peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="small", help="sizes that the arguments below may override")
    for size in PRESETS["small"]:
        parser.add_argument("--" + size, type=int)
    add_model_arguments(parser)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true", help="torch.compile instead of eager")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=12, help="steps timed, after three that are not")
    args = parser.parse_args()
    sizes = {key: getattr(args, key) or value for key, value in PRESETS[args.preset].items()}
    return args, sizes


def main():
    args, sizes = parse()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    idle_mb = resident_mb()

    batch = sizes.pop("batch")
    model = GPT(**sizes, **model_options(args))
    optimizer = adamw(model, lr=1e-3)
    forward = torch.compile(model) if args.compile else model
    tokens, targets = torch.randint(0, sizes["vocab"], (2, batch, sizes["context"]))

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            loss = forward(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    step()
    first_step_s = time.perf_counter() - PROCESS_START
    step(), step()
    seconds, loss, cpu = [], math.nan, time.process_time()
    for _ in range(args.steps):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)

    cpu = (time.process_time() - cpu) / args.steps
    count = sum(p.numel() for p in model.parameters())
    # Six operations per parameter and token, and attention over the causal half of the context.
    operations = (6 * count + 6 * sizes["layers"] * sizes["width"] * sizes["context"]) * batch * sizes["context"]
    median, best = statistics.median(seconds), min(seconds)
    print(json.dumps(dict(
        peer="pytorch", version=torch.__version__, mode="compiled" if args.compile else "eager",
        precision=args.precision, threads=args.threads, batch=batch, **sizes,
        **model_options(args), parameters=count,
        tokens_per_s=round(batch * sizes["context"] / median), best_tokens_per_s=round(batch * sizes["context"] / best),
        step_ms=round(median * 1e3, 2), cpu_ms=round(cpu * 1e3, 2), gflops=round(operations / median / 1e9, 1), first_step_s=round(first_step_s, 2),
        idle_mb=round(idle_mb), peak_mb=round(resident_mb()), loss=round(loss, 4),
    )))


if __name__ == "__main__":
    main()
