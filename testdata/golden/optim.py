"""Golden optimizer trajectories: one parameter [5, 7], ten given gradients, and the parameter after each step.

optim.safetensors holds init [5, 7], gradients [10, 5, 7], learning_rates [10] (float64) and, for each case of optim.json,
<case>.float32 and <case>.float64, both [10, 5, 7]. SGD's weight decay is added to the gradient; AdamW's is decoupled.
"""

import torch

from golden_common import ADAMW, Values, write

STEPS, SHAPE = 10, (5, 7)
LR = 0.02

# options are PyTorch's; scheduled cases use learning_rates instead of lr.
CASES = {
    "adamw": dict(kind="adamw", scheduled=False, options=dict(lr=LR, betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=1e-8, weight_decay=0.1)),
    "adamw_no_decay": dict(kind="adamw", scheduled=False, options=dict(lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)),
    "adamw_large_eps": dict(kind="adamw", scheduled=False, options=dict(lr=LR, betas=(0.9, 0.95), eps=0.1, weight_decay=0.1)),
    "adamw_scheduled": dict(kind="adamw", scheduled=True, options=dict(lr=LR, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)),
    "sgd": dict(kind="sgd", scheduled=False, options=dict(lr=LR)),
    "sgd_momentum": dict(kind="sgd", scheduled=False, options=dict(lr=LR, momentum=0.9)),
    "sgd_momentum_decay": dict(kind="sgd", scheduled=False, options=dict(lr=LR, momentum=0.9, weight_decay=0.1)),
    "sgd_nesterov_decay": dict(kind="sgd", scheduled=False, options=dict(lr=LR, momentum=0.9, nesterov=True, weight_decay=0.1)),
    "sgd_nesterov_scheduled": dict(
        kind="sgd", scheduled=True, options=dict(lr=LR, momentum=0.9, nesterov=True, weight_decay=0.1)
    ),
}


def trajectory(case, init, gradients, rates, dtype):
    kind = dict(adamw=torch.optim.AdamW, sgd=torch.optim.SGD)[case["kind"]]
    param = torch.nn.Parameter(init.to(dtype).clone())
    optimizer = kind([param], foreach=False, **case["options"])
    path = []
    for gradient, rate in zip(gradients, rates):
        if case["scheduled"]:
            optimizer.param_groups[0]["lr"] = rate.item()
        param.grad = gradient.to(dtype).clone()
        optimizer.step()
        path.append(param.detach().clone())
    return torch.stack(path)


if __name__ == "__main__":
    values = Values(4)
    init = values.normal(*SHAPE)
    # Gradients of very different sizes across columns, and exact zeros in the first: AdamW's epsilon and bias correction show.
    gradients = values.normal(STEPS, *SHAPE) * torch.tensor([0.0, 1e-9, 1e-6, 1e-3, 1.0, 10.0, 1e3])
    rates = LR * torch.tensor([0.25, 0.5, 0.75, 1.0, 1.0, 0.9, 0.7, 0.5, 0.3, 0.1], dtype=torch.float64)
    tensors = dict(init=init, gradients=gradients, learning_rates=rates)
    for name, case in CASES.items():
        for dtype in (torch.float32, torch.float64):
            tensors[f"{name}.{str(dtype).removeprefix('torch.')}"] = trajectory(case, init, gradients, rates, dtype)
        error = (tensors[name + ".float32"].double() - tensors[name + ".float64"]).abs().max().item()
        print(f"optim {name}: float32 is at most {error:.1e} from float64")
    write("optim", tensors, dict(steps=STEPS, cases=CASES))
