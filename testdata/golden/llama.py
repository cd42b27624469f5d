"""Golden GPT of the LLaMA family: RMSNorm, rotary positions, SwiGLU, grouped-query attention, an untied head, no biases.

Rotary positions follow the half-split convention of GPT-NeoX and LLaMA: element j of the first half of a head
turns with element j of the second half, by position * base**(-2j/D). Query head h reads key/value head h // (heads / kv_heads).
A linear layer is x @ weight.T.
"""

import torch
import torch.nn.functional as F

from golden_common import Values, language_data, masked_cross_entropy, record_training

CONFIG = dict(
    seed=2, layers=2, width=64, heads=4, kv_heads=2, hidden=128, context=32, vocab=96, batch=4, norm_eps=1e-5, rope_base=10000
)
LAYERS, C, HEADS, KV_HEADS, HIDDEN, T, V, EPS = (
    CONFIG[k] for k in ("layers", "width", "heads", "kv_heads", "hidden", "context", "vocab", "norm_eps")
)
D = C // HEADS


def initial(values):
    params = {"wte.weight": values.weight(V, C)}
    for i in range(LAYERS):
        params[f"h.{i}.norm_1.weight"] = values.scale(C)
        params[f"h.{i}.attn.q.weight"] = values.weight(HEADS * D, C)
        params[f"h.{i}.attn.k.weight"] = values.weight(KV_HEADS * D, C)
        params[f"h.{i}.attn.v.weight"] = values.weight(KV_HEADS * D, C)
        params[f"h.{i}.attn.proj.weight"] = values.weight(C, C)
        params[f"h.{i}.norm_2.weight"] = values.scale(C)
        params[f"h.{i}.mlp.gate.weight"] = values.weight(HIDDEN, C)
        params[f"h.{i}.mlp.up.weight"] = values.weight(HIDDEN, C)
        params[f"h.{i}.mlp.down.weight"] = values.weight(C, HIDDEN)
    params["norm_f.weight"] = values.scale(C)
    params["head.weight"] = values.weight(V, C)
    return params


def rotate(x):
    """Rotary positions on x [B, H, T, D]. Angles are taken in float64 and their sine and cosine rounded to x's type."""
    angle = torch.arange(x.shape[2], dtype=torch.float64)[:, None] * CONFIG["rope_base"] ** (
        -torch.arange(0, D, 2, dtype=torch.float64) / D
    )
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def loss(params, tokens, targets):
    def norm(name, x):
        return x * (x.square().mean(-1, keepdim=True) + EPS).rsqrt() * params[name + ".weight"]

    def linear(name, x):
        return F.linear(x, params[name + ".weight"])

    def attention(name, x):
        batch, time, _ = x.shape

        def heads(part, n):
            return linear(f"{name}.{part}", x).view(batch, time, n, D).transpose(1, 2)

        q, k, v = rotate(heads("q", HEADS)), rotate(heads("k", KV_HEADS)), heads("v", KV_HEADS)
        k, v = (z.repeat_interleave(HEADS // KV_HEADS, 1) for z in (k, v))
        future = torch.ones(time, time, dtype=torch.bool).triu(1)
        y = (q @ k.transpose(-1, -2) / D**0.5).masked_fill(future, float("-inf")).softmax(-1) @ v
        return linear(name + ".proj", y.transpose(1, 2).reshape(batch, time, C))

    def mlp(name, x):
        return linear(name + ".down", F.silu(linear(name + ".gate", x)) * linear(name + ".up", x))

    x = F.embedding(tokens, params["wte.weight"])
    for i in range(LAYERS):
        x = x + attention(f"h.{i}.attn", norm(f"h.{i}.norm_1", x))
        x = x + mlp(f"h.{i}.mlp", norm(f"h.{i}.norm_2", x))
    return masked_cross_entropy(linear("head", norm("norm_f", x)), targets)


if __name__ == "__main__":
    values = Values(CONFIG["seed"])
    init = initial(values)
    tokens, targets = language_data(values, V, CONFIG["batch"], T)
    record_training("llama", CONFIG, loss, init, dict(tokens=tokens, targets=targets))
