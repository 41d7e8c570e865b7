"""Reads training documents from JSON lines: token ids with their mask, or conversations through a chat template.

A conversation is supervised where the assistant speaks. It trains nothing and stores nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.documents import Document, supervised
from trainer.errors import ConfigError


def read_jsonl(path: Path, tokenizer: Any) -> Iterator[Document]:
    """Yield one document a line; raises ConfigError naming the line that is wrong.

    A line holds `input_ids` and `loss_mask`, or `conversations` [{role, content}, ...], or `text` (all supervised).
    """
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _read_line(line, tokenizer, where=f"{path}:{number}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _read_line(line: str, tokenizer: Any, *, where: str) -> Document:
    try:
        record = json.loads(line)
        return _document(record, tokenizer)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{where}: {error}") from error


def _document(record: Any, tokenizer: Any) -> Document:
    if not isinstance(record, Mapping):
        raise ValueError("must be an object")
    if "input_ids" in record:
        return Document(
            torch.tensor(record["input_ids"], dtype=torch.int64), torch.tensor(record["loss_mask"], dtype=torch.int64)
        )
    if "conversations" in record:
        return conversation(record["conversations"], tokenizer)
    if "text" in record:
        return supervised(tokenizer(record["text"], add_special_tokens=False)["input_ids"])
    raise ValueError("needs input_ids with loss_mask, or conversations, or text")


def conversation(messages: Sequence[Mapping[str, str]], tokenizer: Any) -> Document:
    """Return a conversation as the chat template renders it, the assistant's words supervised; raises ValueError.

    What the assistant says is found as the difference between the rendering up to its turn and the one with it. A
    template that rewrites earlier turns (some drop earlier reasoning) has no such difference and is refused.
    """
    ids = _render(messages, tokenizer)
    mask = [0] * len(ids)
    for turn, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = _render(messages[:turn], tokenizer, add_generation_prompt=True)
        after = _render(messages[: turn + 1], tokenizer)
        if ids[: len(after)] != after or after[: len(before)] != before:
            raise ValueError(
                f"the chat template renders turn {turn} differently once later turns follow, so it cannot be located; "
                "give input_ids and loss_mask instead, or one assistant turn a line"
            )
        mask[len(before) : len(after)] = [1] * (len(after) - len(before))
    return Document(torch.tensor(ids, dtype=torch.int64), torch.tensor(mask, dtype=torch.int64))


def _render(messages: Sequence[Mapping[str, str]], tokenizer: Any, *, add_generation_prompt: bool = False) -> list[int]:
    text = tokenizer.apply_chat_template(
        [dict(message) for message in messages], tokenize=False, add_generation_prompt=add_generation_prompt
    )
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
