"""Hidden states from files are those that the verifier gives to packed rows, and a stopped computation goes on."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.train.verifiers import HIDDEN, VOCAB, tiny_verifier
from trainer.batch import ROW_PADDING
from trainer.data import PackedRows
from trainer.documents import Document, supervised
from trainer.errors import TrainerError
from trainer.prepare import Prepared, prepare_states
from trainer.progress import Progress, Talk
from trainer.sections import CorpusConfig, DataConfig
from trainer.signals import StopRequested
from trainer.stored_states import StatesFile, StoredStates, check_room, plan_files

LENGTHS = (5, 9, 3, 16, 1, 40, 7)
DATA = DataConfig(rows=2, row_tokens=16)
QUIET = Talk(say=lambda _: None)


def documents() -> tuple[Document, ...]:
    generator = torch.Generator().manual_seed(7)
    return tuple(supervised(torch.randint(VOCAB, (length,), generator=generator)) for length in LENGTHS)


def stored(folder: Path, *, talk: Talk = QUIET, layers: tuple[int, ...] = (0, 2)) -> StoredStates:
    prepared = Prepared("tiny", documents(), (), reused_verifier=True, reused_documents=True)
    verifier = tiny_verifier(layers)
    return prepare_states(prepared, CorpusConfig(data_dir=folder), DATA, verifier, dtype=torch.float32, talk=talk)


def test_states_from_files_are_the_verifiers_own(tmp_path: Path) -> None:
    states, verifier = stored(tmp_path), tiny_verifier((0, 2))
    for batch, _ in itertools.islice(PackedRows(DATA, documents(), 0), 8):
        found, expected = states.hidden(batch), verifier.hidden(batch)
        is_text = batch.document_ids_BS != ROW_PADDING
        assert found.shape == expected.shape == (2, 16, 2 * HIDDEN)
        torch.testing.assert_close(found[is_text], expected[is_text], rtol=1e-5, atol=1e-5)
        assert not found[~is_text].any()


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of one or two pieces."""
    monkeypatch.setattr("trainer.prepare.FILE_MIB", 16 * 2 * HIDDEN * 4 / 2**20)


def reports_of(folder: Path, should_stop: Callable[[], bool] = lambda: False) -> list[Progress]:
    reports: list[Progress] = []
    stored(folder, talk=Talk(lambda _: None, reports.append, should_stop))
    return reports


@pytest.mark.usefixtures("small_files")
def test_what_was_stopped_goes_on_and_what_stands_is_used_again(tmp_path: Path) -> None:
    batches = itertools.count()
    with pytest.raises(StopRequested, match="while storing hidden states"):
        reports_of(tmp_path, lambda: next(batches) == 2)
    (folder,) = tmp_path.glob("states-*")
    assert len(list(folder.glob("*.safetensors"))) == 2
    reports = reports_of(tmp_path)
    assert reports[-1].step == reports[-1].num_steps == sum(LENGTHS)
    assert len(list(folder.glob("*.safetensors"))) == len(reports) + 2
    assert reports_of(tmp_path) == []
    stored(tmp_path, layers=(1, 2))
    assert len(list(tmp_path.glob("states-*"))) == 2  # other states, beside these


def test_a_disk_without_room_is_told_before_the_work(tmp_path: Path) -> None:
    files = plan_files(tmp_path, [10**9], row_tokens=10**9, file_tokens=1)
    with pytest.raises(TrainerError, match=r"hidden states need 3\d{6}\.\d GiB .* verifier.hidden_states: online"):
        check_room(files, tmp_path, token_bytes=2**22)


def test_files_hold_every_token_once() -> None:
    files = plan_files(Path(), LENGTHS, row_tokens=16, file_tokens=20)
    pieces = [piece for one in files for piece in one.pieces]
    assert [sum(len(one) for one in pieces if one.document == number) for number in range(len(LENGTHS))] == [*LENGTHS]
    assert all(20 <= one.num_tokens < 36 for one in files[:-1])
    assert files[-1] == StatesFile(Path(f"states-{len(files) - 1:05}.safetensors"), files[-1].pieces)
