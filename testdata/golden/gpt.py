"""Golden GPT: pre-norm, learned positions, LayerNorm, tanh GELU, fused qkv, head tied to the token table.

Rows of attn.qkv.weight [3C, C] are the queries, then the keys, then the values; inside each, heads are contiguous.
A linear layer is x @ weight.T + bias. The softmax ignores a constant added to every score of a row, so the true gradient
of the key third of attn.qkv.bias is zero: what is recorded there is rounding noise, which AdamW then amplifies to
steps of up to the learning rate. Compare that third in absolute terms only.
"""

import torch
import torch.nn.functional as F

from golden_common import Values, language_data, masked_cross_entropy, record_training

CONFIG = dict(seed=1, layers=2, width=64, heads=4, context=32, vocab=96, batch=4, norm_eps=1e-5)
LAYERS, C, HEADS, T, V, EPS = (CONFIG[k] for k in ("layers", "width", "heads", "context", "vocab", "norm_eps"))


def initial(values):
    params = {"wte.weight": values.weight(V, C), "wpe.weight": values.weight(T, C)}

    def norm(name):
        params[name + ".weight"], params[name + ".bias"] = values.scale(C), values.bias(C)

    def linear(name, out, into):
        params[name + ".weight"], params[name + ".bias"] = values.weight(out, into), values.bias(out)

    for i in range(LAYERS):
        norm(f"h.{i}.ln_1")
        linear(f"h.{i}.attn.qkv", 3 * C, C)
        linear(f"h.{i}.attn.proj", C, C)
        norm(f"h.{i}.ln_2")
        linear(f"h.{i}.mlp.up", 4 * C, C)
        linear(f"h.{i}.mlp.down", C, 4 * C)
    norm("ln_f")
    return params


def loss(params, tokens, targets):
    def norm(name, x):
        return F.layer_norm(x, (C,), params[name + ".weight"], params[name + ".bias"], EPS)

    def linear(name, x):
        return F.linear(x, params[name + ".weight"], params[name + ".bias"])

    def attention(name, x):
        batch, time, _ = x.shape
        q, k, v = (z.view(batch, time, HEADS, C // HEADS).transpose(1, 2) for z in linear(name + ".qkv", x).split(C, -1))
        scores = q @ k.transpose(-1, -2) / (C // HEADS) ** 0.5
        future = torch.ones(time, time, dtype=torch.bool).triu(1)
        y = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        return linear(name + ".proj", y.transpose(1, 2).reshape(batch, time, C))

    def mlp(name, x):
        return linear(name + ".down", F.gelu(linear(name + ".up", x), approximate="tanh"))

    x = F.embedding(tokens, params["wte.weight"]) + params["wpe.weight"][: tokens.shape[1]]
    for i in range(LAYERS):
        x = x + attention(f"h.{i}.attn", norm(f"h.{i}.ln_1", x))
        x = x + mlp(f"h.{i}.mlp", norm(f"h.{i}.ln_2", x))
    return masked_cross_entropy(F.linear(norm("ln_f", x), params["wte.weight"]), targets)


if __name__ == "__main__":
    values = Values(CONFIG["seed"])
    init = initial(values)
    tokens, targets = language_data(values, V, CONFIG["batch"], T)
    record_training("gpt", CONFIG, loss, init, dict(tokens=tokens, targets=targets))
