"""Golden convolutional net on images [8, 3, 12, 12]: conv, ReLU, max pool, strided conv, ReLU, average pool, linear.

Layout is NCHW, convolution weights are [out, in, kh, kw], the linear layer is x @ weight.T + bias.
"""

import torch.nn.functional as F

from golden_common import STEPS, Values, record_training

CONFIG = dict(seed=3, batch=8, channels=3, size=12, classes=10)


def initial(values):
    return {
        "conv1.weight": values.weight(8, 3, 3, 3, std=0.3),
        "conv1.bias": values.bias(8),
        "conv2.weight": values.weight(16, 8, 3, 3, std=0.2),
        "conv2.bias": values.bias(16),
        "fc.weight": values.weight(10, 16, std=0.4),
        "fc.bias": values.bias(10),
    }


def loss(params, images, labels):
    def layer(name, function, x, **options):
        return function(x, params[name + ".weight"], params[name + ".bias"], **options)

    x = F.max_pool2d(F.relu(layer("conv1", F.conv2d, images, padding=1)), 2)       # [8, 8, 6, 6]
    x = F.avg_pool2d(F.relu(layer("conv2", F.conv2d, x, stride=2, padding=1)), 3)  # [8, 16, 1, 1]
    return F.cross_entropy(layer("fc", F.linear, x.flatten(1)), labels.long())


def image_data(values):
    """Images of one noisy pattern per class, so that there is something to learn."""
    patterns = values.normal(CONFIG["classes"], CONFIG["channels"], CONFIG["size"], CONFIG["size"])
    labels = values.integers(CONFIG["classes"], STEPS, CONFIG["batch"])
    noise = values.normal(STEPS, CONFIG["batch"], *patterns.shape[1:], std=0.5)
    return dict(images=patterns[labels.long()] + noise, labels=labels)


if __name__ == "__main__":
    values = Values(CONFIG["seed"])
    init = initial(values)
    record_training("conv", CONFIG, loss, init, image_data(values))
