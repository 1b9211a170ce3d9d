"""Files that rows read: an encoder from scratch and images, made when a row first needs them."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

ENCODER = "<encoder>"
IMAGES = "<images>"
"""Values of parameters that :meth:`Inputs.resolve` replaces by a path or name."""

CIFAR = "cifar-10-subset"
TRAIN_IMAGES = 4608
TEST_IMAGES = 512
PIXELS = 32
"""Generated images and their side. Nine tenths of the first number train, in batches of up to 4,096."""


class Inputs:
    """Context manager: a temporary folder of generated files, and the folder of datasets."""

    def __init__(self, dry: bool = False) -> None:
        self.data = Path(os.environ.get("ORCHESTRATOR_DATA", "."))
        self._dry = dry
        self._temporary = tempfile.TemporaryDirectory(prefix="gpu-day-")

    def __enter__(self) -> Inputs:
        return self

    def __exit__(self, *error: object) -> None:
        self._temporary.cleanup()

    def resolve(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters with the names of the files in the place of :data:`ENCODER` and :data:`IMAGES`."""
        return {
            name: self.encoder if value == ENCODER else self.images if value == IMAGES else value
            for name, value in params.items()
        }

    @cached_property
    def images(self) -> str:
        """Name or path of a dataset of images."""
        from workloads.data import DataError
        from workloads.data.datasets import check

        if self._dry:
            return "synthetic-images"
        try:
            check(CIFAR, self.data)
        except DataError:
            return str(write_images(Path(self._temporary.name, "images")))
        return CIFAR

    @property
    def images_source(self) -> str:
        """The dataset of images in words."""
        return "generated" if os.path.isabs(self.images) else self.images

    @cached_property
    def encoder(self) -> str:
        """Folder of a BERT-base from scratch, tiny in a dry run."""
        return str(write_encoder(Path(self._temporary.name, "encoder"), small=self._dry))


def write_images(folder: Path) -> Path:
    """Write generated images as a folder of class folders, in the plainest format."""
    from workloads.data.images.synthetic import Planted, generate

    source = generate(Planted(train=TRAIN_IMAGES, test=TEST_IMAGES, size=PIXELS))
    for part, listing in (("train", source.train), ("test", source.test)):
        for name in source.classes:
            (folder / part / name).mkdir(parents=True)
        for row, (label, pixels) in enumerate(zip(listing.labels.tolist(), listing.contents())):
            header = f"P6 {pixels.shape[1]} {pixels.shape[0]} 255\n".encode()
            (folder / part / source.classes[label] / f"{row}.ppm").write_bytes(header + pixels.tobytes())
    return folder


def write_encoder(folder: Path, small: bool) -> Path:
    """Write a BERT-base from scratch, or a tiny one, whose tokens are letters."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import BertConfig, BertModel

    letters = [chr(code) for code in range(33, 127)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = Tokenizer(models.WordPiece({word: row for row, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(words), **(shape if small else {}))
    BertModel(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def sentences(count: int) -> list[str]:
    """Sentences of 4 to 20 letters, the same each time."""
    return [" ".join(chr(97 + (7 * row + 3 * column) % 26) for column in range(4 + row % 17)) for row in range(count)]
