"""The form in which texts are compared: without case, punctuation and blanks."""

from __future__ import annotations

import re
import unicodedata

WORDS = re.compile(r"\w+")


def normal_text(text: str) -> str:
    """The words of a text in one case, joined by blanks."""
    return " ".join(WORDS.findall(unicodedata.normalize("NFKC", text).casefold()))
