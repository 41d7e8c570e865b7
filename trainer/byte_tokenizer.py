"""The demo's vocabulary: one token a byte, and a few that no text holds. As ids, and as a Hugging Face tokenizer."""

from __future__ import annotations

from typing import Any

BEGIN_ID = 256
END_ID = 257
MASK_ID = 258  # fills a draft block; never in text, so to the verifier it means nothing
VOCAB_SIZE = 264  # the rest is never used; a multiple of 8 suits matrix kernels
SPECIAL_TOKENS = {"<|begin|>": BEGIN_ID, "<|end|>": END_ID, "<|mask|>": MASK_ID}


def byte_tokenizer() -> Any:
    """Return a Hugging Face tokenizer that gives each UTF-8 byte its own value as id."""
    import tokenizers  # with transformers seconds, which a recipe that only needs the sizes must not pay
    import transformers
    from tokenizers import decoders, models, pre_tokenizers

    hf: Any = transformers  # it ships types for a part of itself only
    vocabulary = {symbol: byte for byte, symbol in enumerate(byte_symbols())} | SPECIAL_TOKENS
    core = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    begin, end, mask = SPECIAL_TOKENS
    return hf.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=begin, eos_token=end, mask_token=mask, clean_up_tokenization_spaces=False
    )


def byte_symbols() -> list[str]:
    """Return the printable stand-in that byte-level tokenizers use for each byte value, from 0 to 255.

    Printable Latin-1 stands for itself; the others take, in order, the characters after Latin-1.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + rest.index(byte)) for byte in range(256)]
