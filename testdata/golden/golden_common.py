"""What the golden scripts share: seeded values, one reference training loop, and the two files each script writes.

A golden model is a plain function over a dictionary of named tensors, so that the names in the files are the
names in the code. Everything is computed by eager PyTorch on one thread of a CPU.
"""

import json
import os
import platform

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))

ADAMW = dict(lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
CLIP_NORM = 1.0
STEPS = 20

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)


class Values:
    """Seeded tensors. numpy's PCG64 is specified, so the drawn values do not depend on PyTorch's version."""

    def __init__(self, seed):
        self.rng = np.random.Generator(np.random.PCG64(seed))

    def normal(self, *shape, std=1.0, mean=0.0, dtype=torch.float32):
        return torch.as_tensor(mean + std * self.rng.standard_normal(shape)).to(dtype)

    def integers(self, high, *shape):
        return torch.from_numpy(self.rng.integers(0, high, shape).astype(np.int32))

    def weight(self, *shape, std=0.08):
        return self.normal(*shape, std=std)

    def bias(self, n):
        return self.normal(n, std=0.05)

    def scale(self, n):
        """A norm's scale: near one, but not one, so that forgetting it shows."""
        return self.normal(n, std=0.1, mean=1.0)


def language_data(values, vocab, batch, context, masked=0.15):
    """Tokens and targets [STEPS, batch, context], int32, in which a target of -1 does not count.

    Each sequence steps through the vocabulary by a stride of its own with some noise: learnable, but only by
    attending to earlier positions.
    """
    rng = values.rng
    shape = (STEPS, batch)
    start, stride = rng.integers(0, vocab, shape), rng.integers(1, 6, shape)
    clean = start[..., None] + stride[..., None] * np.arange(context + 1)
    noisy = np.where(rng.random(clean.shape) < 0.1, rng.integers(0, vocab, clean.shape), clean) % vocab
    targets = np.where(rng.random((*shape, context)) < masked, -1, noisy[..., 1:])
    return tuple(torch.from_numpy(a.astype(np.int32)) for a in (noisy[..., :-1], targets))


def masked_cross_entropy(logits, targets):
    """Mean over the targets that are not -1 of all [batch, context] positions together."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten().long(), ignore_index=-1)


def train(loss_fn, init, batches, dtype, buffers=None):
    """Trains from init with AdamW, decaying tensors of two or more dimensions only, and clipping by the global norm.

    loss_fn(params, *batch) gives the mean loss; batches holds one tuple per step. Buffers are among params, and loss_fn changes them in place. Returns the losses (before each
    update), the global gradient norms before clipping, the gradients of the first step before clipping, and the final weights.
    """
    params = {name: value.to(dtype).clone().requires_grad_() for name, value in init.items()}
    groups = [
        dict(params=[p for p in params.values() if p.dim() >= 2], weight_decay=ADAMW["weight_decay"]),
        dict(params=[p for p in params.values() if p.dim() < 2], weight_decay=0.0),
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=ADAMW["lr"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["eps"], foreach=False
    )
    state = {name: value.to(dtype).clone() for name, value in (buffers or {}).items()}
    losses, norms, first = [], [], None
    for batch in batches:
        batch = [x.to(dtype) if x.is_floating_point() else x for x in batch]
        optimizer.zero_grad()
        loss = loss_fn(params | state, *batch)
        loss.backward()
        if first is None:
            first = {name: p.grad.clone() for name, p in params.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(params.values(), CLIP_NORM, foreach=False).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms, first, {name: p.detach() for name, p in (params | state).items()}


def worst(a, b, relative):
    """Largest difference of two dictionaries of tensors, by name; relative to each tensor's largest value of b if asked."""
    out = {}
    for name in a:
        difference = (a[name].double() - b[name].double()).abs().max().item()
        out[name] = difference / max(b[name].double().abs().max().item(), 1e-30) if relative else difference
    return out


def record_training(name, config, loss_fn, init, data, buffers=None):
    """Trains in float32 and in float64 and writes name.safetensors and name.json.

    data maps names to tensors whose first axis is the step, in the order loss_fn takes them.
    """
    batches = list(zip(*data.values()))
    losses, norms, grads, final = train(loss_fn, init, batches, torch.float32, buffers)
    losses64, norms64, grads64, final64 = train(loss_fn, init, batches, torch.float64, buffers)

    tensors = dict(data)
    for prefix, values in (("init", init | (buffers or {})), ("grad", grads), ("final", final)):
        tensors.update({f"{prefix}.{key}": value for key, value in values.items()})
    write(
        name,
        tensors,
        dict(
            config=config,
            optimizer=dict(name="adamw", decay="tensors of 2 or more dimensions", clip_norm=CLIP_NORM, steps=STEPS, **ADAMW),
            losses=losses,
            losses_float64=losses64,
            grad_norms=norms,
            grad_norms_float64=norms64,
            # What float32 alone costs: the distance between the recorded values and the same run in float64.
            grad_error_relative_to_max=worst(grads, grads64, relative=True),
            final_error_absolute=worst(final, final64, relative=False),
        ),
    )
    relative = max(abs(a - b) / b for a, b in zip(losses, losses64))
    print(f"{name}: loss {losses[0]:.6f} -> {losses[-1]:.6f}, norms {norms[0]:.4f} -> {norms[-1]:.4f}, "
          f"float32 loss error {relative:.1e}, {sum(v.numel() for v in init.values())} parameters")


def write(name, tensors, record):
    """Writes tensors to name.safetensors and record, with the versions that made it, to name.json."""
    path = os.path.join(HERE, name + ".safetensors")
    save_file({key: value.detach().contiguous() for key, value in tensors.items()}, path)
    os.chmod(path, 0o644)
    made = dict(script=name + ".py", torch=torch.__version__.split("+")[0], numpy=np.__version__, python=platform.python_version())
    with open(os.path.join(HERE, name + ".json"), "w") as f:
        json.dump(dict(made_with=made, **record), f, indent=1)
        f.write("\n")
