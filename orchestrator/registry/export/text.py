"""Text encoders as models of transformers and sentence-transformers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UserError
from orchestrator.registry.export.model import Model, Written

if TYPE_CHECKING:
    from workloads.encoders.served_text import ServedTextEncoder

SPECIAL = {
    "unk_token": ("[UNK]", "<unk>"), "cls_token": ("[CLS]", "<s>"), "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"), "bos_token": ("<s>",), "eos_token": ("</s>",),
}  # fmt: skip
"""Names of special tokens, by their role."""

EMPTY = "A text without tokens has the zero vector in this program; here it has that of its special tokens."


def transformers(model: Model, target: Path) -> Written:
    """Write an encoder for ``AutoModel`` with its tokenizer."""
    if model.config.get("scoring") == "cross":
        raise UserError(
            f"{model.version.name} is a cross-encoder, and its head is no part of a model of transformers",
            fix="Use --format sentence-transformers",
        )  # fmt: skip
    encoder = text_encoder(model)
    _write(encoder, model.config, target)
    usage = (
        "from transformers import AutoModel, AutoTokenizer\n\n"
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER")\n'
        'model = AutoModel.from_pretrained("FOLDER")\n'
        'tokens = tokenizer(["a text"], padding=True, truncation=True, return_tensors="pt")\n'
        "hidden = model(**tokens).last_hidden_state"
    )
    pooled = f"The vector of a text is the {encoder.pooling} of `hidden` over its tokens."
    limits = [pooled, *limits_of(model)]
    return Written(usage, "transformers", limits, task="feature-extraction")


def sentence_transformers(model: Model, target: Path) -> Written:
    """Write a bi-encoder as a SentenceTransformer, a cross-encoder as a CrossEncoder."""
    import torch
    from sentence_transformers import CrossEncoder, SentenceTransformer
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    encoder = text_encoder(model)
    with tempfile.TemporaryDirectory() as scratch:
        _write(encoder, model.config, Path(scratch))
        modules: list[Any] = [Transformer(scratch), Pooling(encoder.dim, encoder.pooling)]
        if model.config.get("scoring") != "cross":
            SentenceTransformer(modules=modules, device="cpu").save(str(target), create_model_card=False)
            usage = (
                "from sentence_transformers import SentenceTransformer\n\n"
                'model = SentenceTransformer("FOLDER")\n'
                'vectors = model.encode(["a text", "another one"])\nmodel.similarity(vectors, vectors)'
            )
            return Written(usage, "sentence-transformers", limits_of(model), task="sentence-similarity")
        weight, bias = (torch.from_numpy(model.weights[f"head.{name}"]) for name in ("weight", "bias"))
        head = Dense(
            encoder.dim, 1, activation_function=torch.nn.Identity(), init_weight=weight, init_bias=bias,
            module_output_name="scores",
        )  # fmt: skip
        shape = torch.nn.Sigmoid() if is_similarity(model) else torch.nn.Identity()
        ranker = CrossEncoder(modules=[*modules, head], device="cpu", activation_fn=shape)
        ranker.save(str(target), create_model_card=False)
    usage = (
        "from sentence_transformers import CrossEncoder\n\n"
        'model = CrossEncoder("FOLDER")\nmodel.predict([("a query", "a document")])'
    )
    return Written(usage, "sentence-transformers", limits_of(model), task="text-ranking")


def text_encoder(model: Model) -> ServedTextEncoder:
    """The encoder of a model of texts, on the CPU."""
    from workloads.encoders.served_text import ServedTextEncoder

    config = model.config
    tokenizer = config["tokenizer"] if "tokenizer" in config else model.weights["tokenizer"].tobytes().decode()
    prefix = "encoder.model." if model.version.workload == "text_ranker" else "model."
    encoder = ServedTextEncoder(
        model.weights, prefix, config["model"], tokenizer, int(config["max_length"]), config["pooling"]
    )
    encoder.model.to("cpu")
    return encoder


def _write(encoder: ServedTextEncoder, config: dict[str, Any], target: Path) -> None:
    """The transformer as safetensors with its configuration, and its tokenizer."""
    from transformers import PreTrainedTokenizerFast

    tokens = encoder.tokenizer.get_vocab(with_added_tokens=True)
    special = {role: name for role, names in SPECIAL.items() for name in names if name in tokens}
    pad = encoder.model.config.pad_token_id
    if pad is None:  # a word as the padding would be split off the texts that have it
        pad = next((number for number, one in encoder.tokenizer.get_added_tokens_decoder().items() if one.special), 0)
    encoder.tokenizer.no_truncation()
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=encoder.tokenizer,
        model_max_length=int(config["max_length"]),
        pad_token=encoder.tokenizer.id_to_token(pad),
        model_input_names=["input_ids", *(["token_type_ids"] if encoder.typed else []), "attention_mask"],
        **special,
    )
    encoder.model.save_pretrained(target)
    tokenizer.save_pretrained(target)


def is_similarity(model: Model) -> bool:
    """Whether a cross-encoder's value is a similarity, the sigmoid of its head, and not a score to rank by."""
    return model.version.workload == "bi_encoder"


def limits_of(model: Model) -> list[str]:
    """What an export of a model of texts leaves out or does otherwise."""
    limits = [f"Texts are cut after {model.config['max_length']} tokens, special ones included."]
    if model.config.get("scoring") != "cross":
        limits.append(EMPTY)
    if model.parameters.get("encoders") == "apart":
        limits.append("This is the encoder of queries; documents were embedded by another one, which is not exported.")
    if model.version.workload == "text_ranker":
        limits.append("Scores are those of the model alone, not fused with BM25.")
    if model.config.get("passages"):
        limits.append("A document's score is the best one of its passages: give passages, and take the maximum.")
    return limits
