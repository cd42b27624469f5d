"""Golden mixed precision: the GPT of gpt.py, from the same weights over the same batches, under torch.autocast in bfloat16 and
float16, 50 steps. In float16 the loss is scaled by GradScaler, once from a usual start and once from 2^30, so that the first
steps overflow. Only losses and scales are recorded; the tensors are those of gpt.safetensors.
"""

import json
import platform

import torch
from safetensors.torch import load_file

import gpt
from golden_common import ADAMW, CLIP_NORM, HERE

STEPS = 50
GROWTH, RARE_GROWTH = 10, 2000


def train(dtype, start, growth):
    recorded = load_file(HERE + "/gpt.safetensors")
    params = {k.removeprefix("init."): v.clone().requires_grad_() for k, v in recorded.items() if k.startswith("init.")}
    groups = [
        dict(params=[p for p in params.values() if p.dim() >= 2], weight_decay=ADAMW["weight_decay"]),
        dict(params=[p for p in params.values() if p.dim() < 2], weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW(groups, lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"], foreach=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=start, growth_interval=growth, enabled=start > 0)
    losses, scales = [], []
    for i in range(STEPS):
        tokens, targets = (recorded[k][i % len(recorded[k])] for k in ("tokens", "targets"))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = gpt.loss(params, tokens, targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(params.values(), CLIP_NORM, foreach=False)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        scales.append(scaler.get_scale())
    return dict(losses=losses, scales=scales if start > 0 else [])


if __name__ == "__main__":
    record = dict(
        config=dict(steps=STEPS, growth=GROWTH, rare_growth=RARE_GROWTH),
        bf16=train(torch.bfloat16, 0.0, GROWTH),
        fp16=train(torch.float16, 2.0**15, GROWTH),
        fp16_overflowing=train(torch.float16, 2.0**30, RARE_GROWTH),
    )
    made = dict(script="mixed.py", torch=torch.__version__.split("+")[0], python=platform.python_version())
    with open(HERE + "/mixed.json", "w") as f:
        json.dump(dict(made_with=made, **record), f, indent=1)
        f.write("\n")
    for k in ("bf16", "fp16", "fp16_overflowing"):
        print(k, record[k]["losses"][0], record[k]["losses"][-1], record[k]["scales"])
