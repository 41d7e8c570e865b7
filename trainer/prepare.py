"""Makes what training starts from, once: the demo's verifier, and documents whose responses the verifier wrote itself.

Everything lands under `data_dir`, whole or not at all, under a name that holds the hash of what determines it; what
stands is used again. It trains no drafter.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from trainer.byte_tokenizer import byte_tokenizer
from trainer.corpus import CorpusConfig, answered, prompts_of, read_source, source_digest
from trainer.demo_verifier import DemoVerifierConfig, save_folder, train_demo_verifier
from trainer.documents import Document, DocumentSet, load_documents, save_documents
from trainer.errors import ConfigError
from trainer.generate import greedy_responses
from trainer.locks import exclusive
from trainer.progress import Talk
from trainer.verifier import Verifier, VerifierConfig, check_path

FORMAT = 1  # goes up when the same choices would give another verifier or other documents


@dataclass(frozen=True)
class Prepared:
    """What stands: the verifier's folder (or hub name), documents, held-out prompts, and what was there already."""

    verifier_path: str
    documents: tuple[Document, ...]
    prompts: tuple[Tensor, ...]
    reused_verifier: bool
    reused_documents: bool


def prepare(
    corpus: CorpusConfig,
    verifier: VerifierConfig,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    talk: Talk,
) -> Prepared:
    """Make what is missing under `data_dir` and return it all.

    Processes that prepare the same folder take turns. Raises ConfigError for a wrong file or folder, StopRequested when
    asked to stop; then nothing half-made stands under a final name.
    """
    corpus.data_dir.mkdir(parents=True, exist_ok=True)
    with exclusive(corpus.data_dir / "prepare.lock", talk):
        path, reused_verifier = _verifier_path(corpus, verifier, talk)
        stored = corpus.data_dir / f"documents-{_documents_key(corpus, path)}.safetensors"
        reused_documents = stored.is_file()
        if not reused_documents:
            save_documents(stored, _make_documents(corpus, verifier, path, device=device, dtype=dtype, talk=talk))
    documents = load_documents(stored)
    return Prepared(path, documents.documents, documents.prompts, reused_verifier, reused_documents)


def content_key(*parts: Any) -> str:
    """Return a short hash of JSON-able values: the same key where all of them are the same."""
    return hashlib.sha256(json.dumps([FORMAT, *parts], sort_keys=True, default=str).encode()).hexdigest()[:16]


def _verifier_path(corpus: CorpusConfig, verifier: VerifierConfig, talk: Talk) -> tuple[str, bool]:
    """Return where the verifier is and whether it was there already; trains the demo's where it is missing."""
    if verifier.path is not None:
        return check_path(verifier), True
    text = CorpusConfig(held_out_one_in=corpus.held_out_one_in)
    folder = corpus.data_dir / f"verifier-{_demo_key(verifier.demo, text)}"
    if folder.is_dir():
        return str(folder), True
    split = read_source(text, byte_tokenizer())
    talk.say(f"training the demo's verifier: {verifier.demo.steps} steps on text that Python ships")
    tokens = [document.input_ids_S for document in split.train]
    save_folder(train_demo_verifier(verifier.demo, tokens, talk=talk), folder)
    return str(folder), False


def _demo_key(demo: DemoVerifierConfig, text: CorpusConfig) -> str:
    choices = {name: value for name, value in asdict(demo).items() if name != "report_every"}
    return content_key(choices, text.held_out_one_in, source_digest(text))


def _documents_key(corpus: CorpusConfig, verifier_path: str) -> str:
    """Return the key of a corpus's documents; how many rows are generated at a time does not change them."""
    choices = {
        name: value for name, value in asdict(corpus).items() if name not in ("data_dir", "path", "generate_rows")
    }
    return content_key(choices, source_digest(corpus), _identity(verifier_path))


def _identity(verifier_path: str) -> Any:
    """Return what tells one verifier from another: its config and, file by file, size and time; a hub name as it is."""
    folder = Path(verifier_path)
    if not folder.is_dir():
        return verifier_path
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors", ".bin", ".jinja"))
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _make_documents(
    corpus: CorpusConfig,
    config: VerifierConfig,
    path: str,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    talk: Talk,
) -> DocumentSet:
    local_only = not config.allow_download
    split = read_source(corpus, _tokenizer(path, local_only=local_only))
    is_text = corpus.source == "python"
    held_out = prompts_of(
        split.held_out,
        num_prompts=corpus.num_eval_prompts,
        prompt_tokens=corpus.prompt_tokens,
        is_text=is_text,
        seed=corpus.seed,
    )
    if corpus.responses == "corpus":
        return DocumentSet(split.train, held_out)
    prompts = prompts_of(
        split.train,
        num_prompts=corpus.num_prompts,
        prompt_tokens=corpus.prompt_tokens,
        is_text=is_text,
        seed=corpus.seed + 1,
    )
    if not prompts or not held_out:
        raise ConfigError(f"corpus.prompt_tokens: no prompt is at most {corpus.prompt_tokens} tokens long")
    verifier = Verifier.load(path, (0,), device=device, dtype=dtype, allow_download=config.allow_download)
    talk.say(f"the verifier answers {len(prompts)} prompts with up to {corpus.response_tokens} tokens each")
    responses = greedy_responses(
        verifier, prompts, max_new_tokens=corpus.response_tokens, rows=corpus.generate_rows, talk=talk
    )
    return DocumentSet(answered(prompts, responses), held_out)


def _tokenizer(path: str, *, local_only: bool) -> Any:
    try:
        return transformers.AutoTokenizer.from_pretrained(path, local_files_only=local_only)
    except (OSError, ValueError) as error:
        raise ConfigError(f"verifier.path: cannot load a tokenizer from {path}: {error}") from error
