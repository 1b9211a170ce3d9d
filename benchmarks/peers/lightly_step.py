"""lightly's SimCLR as in its example: ResNet-18 with CIFAR's stem, its transform in workers, NTXentLoss, SGD.

With ``--precision bf16`` forward and loss run under autocast. The seconds of each step, including the wait for
the loader, as JSON.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
import torchvision
from lightly.loss import NTXentLoss
from lightly.models.modules import SimCLRProjectionHead
from lightly_images import loader
from torch import nn

IMAGES = 10_000


class SimCLR(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        resnet = torchvision.models.resnet18()
        resnet.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        resnet.maxpool = nn.Identity()
        self.backbone = nn.Sequential(*list(resnet.children())[:-1])
        self.projection_head = SimCLRProjectionHead(512, 512, 128)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.projection_head(self.backbone(images).flatten(start_dim=1))
        return projected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    batches = iter(loader(IMAGES, args.batch, args.workers, blur=0.0))
    model, criterion = SimCLR(), NTXentLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06)
    seconds = []
    for _ in range(args.steps):
        started = time.perf_counter()
        first, second = next(batches)
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            loss = criterion(model(first), model(second))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - started)
    print(json.dumps({"seconds": seconds, "images": args.batch}))


if __name__ == "__main__":
    main()
