"""PyTorch's time for one training step of a ResNet-18 in CIFAR form on the CPU: forward, backward, SGD with momentum. Prints one line of JSON.

A 3x3 stem without pooling, four stages of two basic blocks (64, 128, 256, 512 channels), the mean over pixels, a linear head; images of
3x32x32. PyTorch runs at its best documented settings for one machine: channels-last memory, autocast for bf16, fused SGD,
torch.compile on request (needs a C++ compiler).

    python resnet_step.py --precision bf16 --threads 2
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


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv_1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv_2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm_1, self.norm_2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.norm_1(self.conv_1(x)), inplace=True)
        return F.relu(self.norm_2(self.conv_2(y)) + self.shortcut(x), inplace=True)


class ResNet18(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
        blocks, inputs = [], 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
            inputs = outputs
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(512, classes)

    def forward(self, x, labels):
        """The mean loss in nats per image."""
        x = self.blocks(F.relu(self.norm(self.stem(x)), inplace=True))
        return F.cross_entropy(self.head(x.mean((2, 3))).float(), labels)


def operations(model, batch):
    """Floating-point operations of one step: the products of convolutions and head, forward and by both gradients."""
    count = 0

    def add(module, inputs, output):
        nonlocal count
        count += 2 * output.numel() * module.weight[0].numel()

    hooks = [m.register_forward_hook(add) for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    training = model.training
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, 32, 32), torch.zeros(1, dtype=torch.long))
    model.train(training)
    for hook in hooks:
        hook.remove()
    return 3 * count * batch


def resident_mb():
    """Peak resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--compile", action="store_true", help="torch.compile instead of eager")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=6, help="steps timed, after two that are not")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    idle_mb = resident_mb()

    model = ResNet18()
    work = operations(model, args.batch)
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, fused=True)
    forward = torch.compile(model) if args.compile else model
    images = torch.randn(args.batch, 3, 32, 32).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (args.batch,))

    def step():
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            loss = forward(images, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    step()
    first_step_s = time.perf_counter() - PROCESS_START
    step()
    seconds, loss, cpu = [], math.nan, time.process_time()
    for _ in range(args.steps):
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
    cpu = (time.process_time() - cpu) / args.steps
    median = statistics.median(seconds)
    print(json.dumps(dict(
        peer="pytorch", version=torch.__version__, mode="compiled" if args.compile else "eager", precision=args.precision,
        threads=args.threads, batch=args.batch, parameters=sum(p.numel() for p in model.parameters()),
        tokens_per_s=round(args.batch / median, 1),  # the key of every peer's rate: targets, here images
        images_per_s=round(args.batch / median, 1), best_images_per_s=round(args.batch / min(seconds), 1),
        step_ms=round(median * 1e3, 2), cpu_ms=round(cpu * 1e3, 2), gflops=round(work / median / 1e9, 1), first_step_s=round(first_step_s, 2),
        idle_mb=round(idle_mb), peak_mb=round(resident_mb()), loss=round(loss, 4),
    )))


if __name__ == "__main__":
    main()
