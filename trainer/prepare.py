"""Makes what training starts from, once: the demo's verifier, and documents whose responses the verifier wrote itself.

Everything lands under `data_dir`, whole or not at all, under a name that holds the hash of what determines it; what
stands is used again. It trains no drafter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

from trainer.byte_tokenizer import byte_tokenizer
from trainer.corpus import Split, answered, prompts_of, read_source, source_digest
from trainer.demo_verifier import save_folder, train_demo_verifier
from trainer.documents import Document, documents_digest, load_documents, save_documents, supervised
from trainer.errors import ConfigError
from trainer.generate import greedy_responses
from trainer.locks import exclusive
from trainer.progress import Talk
from trainer.sections import CorpusConfig, DataConfig, DemoVerifierConfig, VerifierConfig
from trainer.stored_states import FILE_MIB, StoredStates, check_room, plan_files, store_states
from trainer.verifier import Verifier
from trainer.verifier_path import check_path

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
    try:
        corpus.data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"corpus.data_dir: cannot make {corpus.data_dir}: {error.strerror}") from error
    with exclusive(corpus.data_dir / "prepare.lock", talk):
        path, reused_verifier = _verifier_path(corpus, verifier, talk)
        work = _Work(corpus, verifier, path, device, dtype, talk)
        prompts, _ = work.stored("prompts", work.prompts, *PROMPT_CHOICES)
        choices = DOCUMENT_CHOICES if corpus.responses == "corpus" else (*DOCUMENT_CHOICES, *RESPONSE_CHOICES)
        documents, reused_documents = work.stored("documents", work.documents, *choices)
    if reused_verifier and reused_documents:
        talk.say(f"nothing to prepare: the verifier is {path}, {len(documents)} documents stand in {corpus.data_dir}")
    return Prepared(path, documents, tuple(one.input_ids_S for one in prompts), reused_verifier, reused_documents)


def prepare_states(
    prepared: Prepared, corpus: CorpusConfig, data: DataConfig, verifier: Verifier, *, dtype: torch.dtype, talk: Talk
) -> StoredStates:
    """Return the verifier's hidden states of all documents, made where they are missing under `data_dir`.

    Raises TrainerError where the disk has no room for them, StopRequested when asked to stop.
    """
    documents, num_channels = prepared.documents, len(verifier.target_layer_ids) * verifier.shape.hidden_size
    what = list(verifier.target_layer_ids), data.row_tokens, str(dtype), documents_digest(documents)
    folder = corpus.data_dir / f"states-{content_key(_identity(prepared.verifier_path), *what)}"
    folder.mkdir(exist_ok=True)
    token_bytes = num_channels * dtype.itemsize
    lengths = [len(document) for document in documents]
    file_tokens = max(1, FILE_MIB * 2**20 // token_bytes)
    files = plan_files(folder, lengths, row_tokens=data.row_tokens, file_tokens=file_tokens)
    with exclusive(folder / "states.lock", talk):
        check_room(files, folder, token_bytes=token_bytes)
        store_states(files, documents, verifier, data, talk=talk)
    talk.say(f"the verifier's hidden states of {len(documents)} documents stand in {folder}")
    return StoredStates(files, num_channels, device=verifier.device, dtype=dtype)


# Which of the corpus's keys decide what is in a file; the others only say how it is made, or belong to another file.
DOCUMENT_CHOICES = ("source", "responses", "held_out_one_in")
PROMPT_CHOICES = ("source", "held_out_one_in", "num_eval_prompts", "prompt_tokens", "seed")
RESPONSE_CHOICES = ("num_prompts", "prompt_tokens", "response_tokens", "seed")


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


def _identity(verifier_path: str) -> Any:
    """Return what tells one verifier from another: its config and, file by file, size and time; a hub name as it is."""
    folder = Path(verifier_path)
    if not folder.is_dir():
        return verifier_path
    files = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".safetensors", ".bin", ".jinja"))
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


@dataclass(frozen=True)
class _Work:
    """One preparation whose verifier stands."""

    corpus: CorpusConfig
    verifier: VerifierConfig
    path: str
    device: torch.device | str
    dtype: torch.dtype
    talk: Talk

    def stored(
        self, kind: str, make: Callable[[], Sequence[Document]], *choices: str
    ) -> tuple[tuple[Document, ...], bool]:
        """Return the documents of a kind and whether they stood already; makes and keeps them where they do not."""
        key = content_key({name: getattr(self.corpus, name) for name in choices}, self._digest, _identity(self.path))
        path = self.corpus.data_dir / f"{kind}-{key}.safetensors"
        reused = path.is_file()
        if not reused:
            save_documents(path, make())
        return load_documents(path), reused

    def prompts(self) -> list[Document]:
        """Return held-out prompts, as documents without supervision."""
        found = self._prompts_of(self._split.held_out, self.corpus.num_eval_prompts, seed=self.corpus.seed)
        return [supervised(prompt, start=len(prompt)) for prompt in found]

    def documents(self) -> Sequence[Document]:
        """Return documents to train on; the verifier answers their prompts where the recipe says so."""
        corpus = self.corpus
        if corpus.responses == "corpus":
            return self._split.train
        prompts = self._prompts_of(self._split.train, corpus.num_prompts, seed=corpus.seed + 1)
        self.talk.say(f"the verifier answers {len(prompts)} prompts with up to {corpus.response_tokens} tokens each")
        verifier = Verifier.load(
            self.path, (0,), device=self.device, dtype=self.dtype, allow_download=self.verifier.allow_download
        )
        responses = greedy_responses(
            verifier, prompts, max_new_tokens=corpus.response_tokens, rows=corpus.generate_rows, talk=self.talk
        )
        return answered(prompts, responses)

    @cached_property
    def _digest(self) -> str:
        return source_digest(self.corpus)

    @cached_property
    def _split(self) -> Split:
        return read_source(self.corpus, _tokenizer(self.path, local_only=not self.verifier.allow_download))

    def _prompts_of(self, documents: Sequence[Document], num_prompts: int, *, seed: int) -> tuple[Tensor, ...]:
        prompt_tokens = self.corpus.prompt_tokens
        prompts = prompts_of(
            documents,
            num_prompts=num_prompts,
            prompt_tokens=prompt_tokens,
            is_text=self.corpus.source == "python",
            seed=seed,
        )
        if not prompts:
            raise ConfigError(f"corpus.prompt_tokens: no prompt is at most {prompt_tokens} tokens long")
        return prompts


def _tokenizer(path: str, *, local_only: bool) -> Any:
    try:
        return transformers.AutoTokenizer.from_pretrained(path, local_files_only=local_only)
    except (OSError, ValueError) as error:
        raise ConfigError(f"verifier.path: cannot load a tokenizer from {path}: {error}") from error
