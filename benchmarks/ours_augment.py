"""Our augmentation of CIFAR's images: decoded once, then two views per image in batches of 256, in one process.

The seconds of one pass over the images, after a warm-up pass, as JSON.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from harness import data_root

from workloads.augment import Recipe
from workloads.data.images.load import load_images
from workloads.data.images.resident import prepare
from workloads.seeding import generator

SIZE, BATCH = 32, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--blur", type=float, required=True)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    images = load_images("cifar-10-subset", data_root("cifar10/train.parquet"))
    data = prepare(images, split_seed=0, holdout=False, device=device)
    recipe = Recipe(size=SIZE, blur=args.blur)
    for epoch in (1, 2):
        started = time.perf_counter()
        order = torch.randperm(args.images, generator=generator(0, "order", epoch))
        batches = [batch for batch in order.split(BATCH) if len(batch) == BATCH]
        draws = generator(0, "augment", epoch)
        for images in data.train.stream(batches):
            views = recipe.apply(images.repeat(2, 1, 1, 1), recipe.draw(2 * BATCH, draws))
        views.sum().item()  # the device has finished
        seconds = time.perf_counter() - started
    print(json.dumps({"seconds": seconds, "images": len(batches) * BATCH}))


if __name__ == "__main__":
    main()
