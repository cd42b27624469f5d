"""Golden trajectories of the optimizers in plugins/: 50 given gradients, and the parameter after every tenth step.

plugins.safetensors holds for each case of plugins.json <case>.init [rows, cols], <case>.gradients [50, rows, cols], rates [50]
(float64) and <case>.path [5, rows, cols]. Lion and Adan are written from their papers (Chen et al., 2023, program 2; Xie et al., 2022); Muon is torch.optim.Muon
with its Newton-Schulz iteration in float32 instead of bfloat16.
"""

import torch
import torch.optim._muon as torch_muon

from golden_common import Values, write

STEPS, EVERY = 50, 10

CASES = {
    "lion": dict(kind="lion", shape=(9, 14), lr=3e-3, options=dict(betas=(0.9, 0.99), weight_decay=0.1)),
    "lion_no_decay": dict(kind="lion", shape=(5, 3), lr=1e-2, options=dict(betas=(0.95, 0.98), weight_decay=0.0)),
    "muon_wide": dict(kind="muon", shape=(12, 20), lr=2e-2, options=dict(momentum=0.95, nesterov=True, weight_decay=0.1)),
    "muon_tall": dict(kind="muon", shape=(24, 10), lr=2e-2, options=dict(momentum=0.9, nesterov=False, weight_decay=0.0)),
    "muon_square": dict(kind="muon", shape=(16, 16), lr=1e-2, options=dict(momentum=0.95, nesterov=True, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")),
    "adan": dict(kind="adan", shape=(11, 6), lr=1e-2, options=dict(betas=(0.98, 0.92, 0.99), eps=1e-8, weight_decay=0.02)),
    "adan_plain": dict(kind="adan", shape=(4, 7), lr=3e-3, options=dict(betas=(0.9, 0.8, 0.95), eps=1e-6, weight_decay=0.0)),
}


def orthogonal(grad, ns_coefficients, ns_steps, eps):
    """torch's _zeropower_via_newtonschulz without the cast to bfloat16."""
    a, b, c = ns_coefficients
    x = grad.T if grad.size(0) > grad.size(1) else grad
    x = x / x.norm().clamp(min=eps)
    for _ in range(ns_steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if grad.size(0) > grad.size(1) else x


class Lion(torch.optim.Optimizer):
    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_((b1 * m + (1 - b1) * p.grad).sign(), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)


class Adan(torch.optim.Optimizer):
    """Xie et al., 2022, algorithm 1 with the proximal weight decay, with the bias corrections of the authors' program."""

    def __init__(self, params, lr, betas, eps, weight_decay):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2, b3 = group["betas"]
            for p in group["params"]:
                s = self.state[p]
                g = p.grad
                if not s:
                    s.update(k=0, m=torch.zeros_like(p), d=torch.zeros_like(p), v=torch.zeros_like(p), old=g.clone())
                s["k"] += 1
                change = g - s["old"]
                s["old"] = g.clone()
                s["m"].lerp_(g, 1 - b1)
                s["d"].lerp_(change, 1 - b2)
                s["v"].lerp_((g + b2 * change) ** 2, 1 - b3)
                m, d, v = (s[x] / (1 - b ** s["k"]) for x, b in (("m", b1), ("d", b2), ("v", b3)))
                p.sub_(group["lr"] * (m + b2 * d) / (v.sqrt() + group["eps"]))
                p.div_(1 + group["lr"] * group["weight_decay"])


if __name__ == "__main__":
    torch_muon._zeropower_via_newtonschulz = orthogonal
    values = Values(7)
    steps = torch.arange(STEPS, dtype=torch.float64)
    tensors = dict(rates=torch.clamp((steps + 1) / 5, max=1.0) * (1 - steps / 60))
    for name, case in CASES.items():
        init = values.normal(*case["shape"], std=0.5)
        gradients = values.normal(STEPS, *case["shape"]) * (10.0 ** values.integers(3, STEPS).float())[:, None, None] * 0.1
        p = torch.nn.Parameter(init.clone())
        kind = dict(lion=Lion, muon=torch.optim.Muon, adan=Adan)[case["kind"]]
        optimizer = kind([p], lr=case["lr"], **case["options"])
        path = []
        for i in range(STEPS):
            optimizer.param_groups[0]["lr"] = case["lr"] * tensors["rates"][i].item()
            p.grad = gradients[i].clone()
            optimizer.step()
            if i % EVERY == EVERY - 1:
                path.append(p.detach().clone())
        tensors |= {name + ".init": init, name + ".gradients": gradients, name + ".path": torch.stack(path)}
    write("plugins", tensors, dict(steps=STEPS, every=EVERY, cases=CASES))
