"""AdamW (Loshchilov and Hutter, 2019) as a plugin in Python, with numpy."""

import numpy as np

import starling_sdk as sdk


class AdamW(sdk.Optimizer):
    manifest = sdk.Manifest(
        "python-adamw",
        "1.0.0",
        "AdamW in Python, as torch.optim.AdamW computes it",
        hypers=[
            sdk.Floats("betas", [0.9, 0.999], "weights of the old moments", least=0, below=1),
            sdk.Float("eps", 1e-8, "keeps the division from zero", least=0),
            sdk.Float("weight_decay", 0.01, "decoupled weight decay, of parameters with two or more dimensions", least=0),
        ],
        state=[sdk.State("m"), sdk.State("v")],
    )

    def setup(self, hypers):
        self.betas, self.eps, self.decay = hypers["betas"], np.float32(hypers["eps"]), hypers["weight_decay"]

    def step(self, t):
        b1, b2 = self.betas
        m, v, g = t.state["m"], t.state["v"], t.grad
        decay = self.decay if len(t.shape) >= 2 else 0.0
        t.param *= np.float32(1 - t.rate * decay)
        m += np.float32(1 - b1) * (g - m)
        v *= np.float32(b2)
        v += np.float32(1 - b2) * (g * g)
        c1, c2 = 1 - b1 ** (t.step + 1), 1 - b2 ** (t.step + 1)
        t.param -= np.float32(t.rate / c1) * m / (np.sqrt(v) * np.float32(1 / np.sqrt(c2)) + self.eps)


sdk.serve(AdamW())
