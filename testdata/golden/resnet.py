"""Golden residual net with batch norm on images [8, 3, 12, 12]: a stem, a block with a strided shortcut, a mean over the image, linear.

Layout is NCHW. The running averages are buffers: they are among init and final, and each step moves them by a momentum of 0.1.
"""

import torch
import torch.nn.functional as F

from conv import CONFIG, image_data
from golden_common import Values, record_training

NORMS = {"bn1": 8, "block.bn1": 16, "block.bn2": 16, "block.shortcut.bn": 16}


def initial(values):
    weights = {
        "conv1.weight": values.weight(8, 3, 3, 3, std=0.3),
        "block.conv1.weight": values.weight(16, 8, 3, 3, std=0.2),
        "block.conv2.weight": values.weight(16, 16, 3, 3, std=0.2),
        "block.shortcut.conv.weight": values.weight(16, 8, 1, 1, std=0.3),
        "fc.weight": values.weight(10, 16, std=0.4),
        "fc.bias": values.bias(10),
    }
    for name, n in NORMS.items():
        weights |= {name + ".weight": values.scale(n), name + ".bias": values.bias(n)}
    return weights


def buffers():
    out = {}
    for name, n in NORMS.items():
        out |= {name + ".running_mean": torch.zeros(n), name + ".running_var": torch.ones(n)}
    return out


def loss(params, images, labels):
    def norm(name, x):
        p = [params[f"{name}.{key}"] for key in ("running_mean", "running_var", "weight", "bias")]
        return F.batch_norm(x, *p, training=True, momentum=0.1, eps=1e-5)

    def conv(name, x, **options):
        return F.conv2d(x, params[name + ".weight"], **options)

    x = F.relu(norm("bn1", conv("conv1", images, padding=1)))                           # [8, 8, 12, 12]
    y = F.relu(norm("block.bn1", conv("block.conv1", x, stride=2, padding=1)))          # [8, 16, 6, 6]
    y = norm("block.bn2", conv("block.conv2", y, padding=1))
    x = F.relu(norm("block.shortcut.bn", conv("block.shortcut.conv", x, stride=2)) + y)
    return F.cross_entropy(F.linear(x.mean((2, 3)), params["fc.weight"], params["fc.bias"]), labels.long())


if __name__ == "__main__":
    values = Values(7)
    init = initial(values)
    record_training("resnet", CONFIG | dict(seed=7), loss, init, image_data(values), buffers())
