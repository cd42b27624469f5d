"""Golden values of single operations in float64: inputs, output, and the gradient of every floating input.

For each case of ops.json, ops.safetensors holds <case>.in.<name>, <case>.out, <case>.seed (the gradient that enters at
the output) and <case>.grad.<name>. Layouts: images NCHW, convolution weights [out, in/groups, kh, kw], attention
[batch, heads, time, head size]. Integer inputs are int32.
"""

import torch
import torch.nn.functional as F

from golden_common import Values, write

values = Values(5)


def normal(*shape, **kw):
    return values.normal(*shape, dtype=torch.float64, **kw)


def attention(q, k, v, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


def rms_norm(x, weight, eps):
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def layer_norm(x, weight, bias, eps):
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def batch_norm(x, weight, bias, eps):
    return F.batch_norm(x, None, None, weight, bias, training=True, eps=eps)


def cross_entropy(logits, targets, ignore):
    return F.cross_entropy(logits, targets.long(), ignore_index=ignore)


def conv2d(x, weight, bias=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1):
    return F.conv2d(x, weight, bias, stride, padding, dilation, groups)


def max_pool2d(x, kernel, stride, padding):
    return F.max_pool2d(x, kernel, stride, padding)


def avg_pool2d(x, kernel, stride, padding, count_include_pad):
    return F.avg_pool2d(x, kernel, stride, padding, count_include_pad=count_include_pad)


def gelu(x, approximate):
    return F.gelu(x, approximate=approximate)


def silu(x):
    return F.silu(x)


def softmax(x):
    return F.softmax(x, -1)


def log_softmax(x):
    return F.log_softmax(x, -1)


def embedding(table, tokens):
    return F.embedding(tokens, table)


def qkv(heads, kv_heads, time_q, time_k, size):
    return dict(q=normal(2, heads, time_q, size), k=normal(2, kv_heads, time_k, size), v=normal(2, kv_heads, time_k, size))


def conv(channels, out, kernel, size, groups=1, bias=True):
    inputs = dict(x=normal(2, channels, *size), weight=normal(out, channels // groups, *kernel, std=0.4))
    return inputs | (dict(bias=normal(out)) if bias else {})


def activation_range():
    """Ordinary values, the tails, and the neighbourhood of zero."""
    return torch.cat((normal(24, std=2.0), torch.tensor([-30.0, -8.0, -4.0, -1e-3, 0.0, 1e-3, 4.0, 8.0, 30.0], dtype=torch.float64)))


# name: (operation, inputs, attributes)
CASES = {
    "attention_causal": (attention, qkv(3, 3, 7, 7, 4), dict(causal=True)),
    "attention_full": (attention, qkv(2, 2, 5, 9, 4), dict(causal=False)),
    "attention_grouped_query": (attention, qkv(4, 2, 7, 7, 4), dict(causal=True)),
    "layer_norm": (layer_norm, dict(x=normal(3, 4, 10, mean=0.5), weight=normal(10), bias=normal(10)), dict(eps=1e-5)),
    "layer_norm_tiny_variance": (layer_norm, dict(x=normal(4, 10, std=1e-3), weight=normal(10), bias=normal(10)), dict(eps=1e-5)),
    "rms_norm": (rms_norm, dict(x=normal(3, 4, 10), weight=normal(10)), dict(eps=1e-5)),
    "cross_entropy": (cross_entropy, dict(logits=normal(6, 9, std=3.0), targets=values.integers(9, 6)), dict(ignore=-1)),
    "cross_entropy_masked": (
        cross_entropy,
        dict(logits=normal(6, 9, std=3.0), targets=torch.tensor([3, -1, 0, 8, -1, 5], dtype=torch.int32)),
        dict(ignore=-1),
    ),
    "cross_entropy_large_logits": (cross_entropy, dict(logits=normal(4, 9, std=300.0), targets=values.integers(9, 4)), dict(ignore=-1)),
    "conv2d": (conv2d, conv(3, 4, (3, 3), (6, 7)), {}),
    "conv2d_no_bias_1x1": (conv2d, conv(4, 5, (1, 1), (5, 4), bias=False), {}),
    "conv2d_stride": (conv2d, conv(3, 4, (3, 3), (8, 7)), dict(stride=(2, 2), padding=(1, 1))),
    "conv2d_uneven": (conv2d, conv(2, 3, (3, 2), (9, 8)), dict(stride=(3, 2), padding=(2, 1))),
    "conv2d_dilation": (conv2d, conv(2, 3, (3, 3), (9, 9)), dict(padding=(2, 1), dilation=(2, 3))),
    "conv2d_groups": (conv2d, conv(4, 6, (3, 3), (6, 6), groups=2), dict(padding=(1, 1), groups=2)),
    "conv2d_depthwise": (conv2d, conv(4, 4, (3, 3), (7, 7), groups=4), dict(stride=(2, 2), padding=(1, 1), groups=4)),
    "max_pool2d": (max_pool2d, dict(x=normal(2, 3, 8, 6)), dict(kernel=(2, 2), stride=(2, 2), padding=(0, 0))),
    "max_pool2d_padding": (max_pool2d, dict(x=normal(2, 3, 7, 8, mean=-2.0)), dict(kernel=(3, 3), stride=(2, 2), padding=(1, 1))),
    "avg_pool2d": (
        avg_pool2d, dict(x=normal(2, 3, 8, 6)), dict(kernel=(2, 3), stride=(2, 3), padding=(0, 0), count_include_pad=True)
    ),
    "avg_pool2d_padding_counted": (
        avg_pool2d, dict(x=normal(2, 3, 7, 8)), dict(kernel=(3, 3), stride=(2, 2), padding=(1, 1), count_include_pad=True)
    ),
    "avg_pool2d_padding_excluded": (
        avg_pool2d, dict(x=normal(2, 3, 7, 8)), dict(kernel=(3, 3), stride=(2, 2), padding=(1, 1), count_include_pad=False)
    ),
    "gelu_exact": (gelu, dict(x=activation_range()), dict(approximate="none")),
    "gelu_tanh": (gelu, dict(x=activation_range()), dict(approximate="tanh")),
    "silu": (silu, dict(x=activation_range()), {}),
    "softmax": (softmax, dict(x=normal(3, 4, 9, std=3.0)), {}),
    "log_softmax": (log_softmax, dict(x=normal(3, 4, 9, std=3.0)), {}),
    "embedding_repeated": (
        embedding, dict(table=normal(7, 5), tokens=torch.tensor([[0, 3, 3], [6, 0, 3]], dtype=torch.int32)), {}
    ),
    "batch_norm": (batch_norm, dict(x=normal(6, 4, mean=0.5), weight=normal(4), bias=normal(4)), dict(eps=1e-5)),
    "batch_norm_images": (batch_norm, dict(x=normal(3, 4, 5, 6, mean=0.5), weight=normal(4), bias=normal(4)), dict(eps=1e-5)),
}

if __name__ == "__main__":
    tensors, record = {}, []
    for name, (function, inputs, attributes) in CASES.items():
        floating = {key: x.requires_grad_() for key, x in inputs.items() if x.is_floating_point()}
        out = function(**inputs, **attributes)
        seed = normal(*out.shape)
        out.backward(seed)
        tensors.update({f"{name}.in.{key}": x for key, x in inputs.items()})
        tensors.update({f"{name}.out": out, f"{name}.seed": seed})
        tensors.update({f"{name}.grad.{key}": x.grad for key, x in floating.items()})
        record.append(dict(name=name, op=function.__name__, attributes=attributes, inputs=list(inputs), gradients=list(floating)))
    write("ops", tensors, dict(cases=record))
    print(f"ops: {len(CASES)} cases, {len(tensors)} tensors")
