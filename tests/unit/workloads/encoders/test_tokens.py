"""Tokenisation of a whole corpus; the ids themselves are tested with the encoders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workloads.encoders import tokens
from workloads.encoders.tokens import Tokenizer, Tokens

TEXTS = ["a plane takes off", "", "An air plane, taking off!", "off", "take the plane " * 4, " \n", "a a a"]


def test_a_corpus_is_tokenised_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's encodings take many times the memory of the ids."""
    tokenizer = Tokenizer.of_words(TEXTS, 60, max_length=12)
    library = tokenizer._tokenizer
    whole = tokenizer.bare(TEXTS)
    seen: list[int] = []

    class Counted:
        def encode_batch_fast(self, texts: list[str], **settings: Any) -> Any:
            seen.append(len(texts))
            return library.encode_batch_fast(texts, **settings)

    monkeypatch.setattr(tokens, "_AT_ONCE", 3, raising=False)
    monkeypatch.setattr(tokenizer, "_tokenizer", Counted())
    parts = tokenizer.bare(TEXTS)
    assert seen == [3, 3, 1]
    for name in Tokens.__slots__:
        assert np.array_equal(getattr(parts, name), getattr(whole, name))
        assert getattr(parts, name).dtype == getattr(whole, name).dtype
    assert len(tokenizer.bare([])) == 0
