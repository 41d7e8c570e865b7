"""No shell reads a user's values on their way: words, names, paths and variables arrive as the bytes that they are."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from opsctl.ops.exec import run as run_command
from opsctl.ops.files import get, put
from opsctl.ops.runs import start
from opsctl.ops.workspace import Workspace
from opsctl.records.run import RunSpec
from opsctl.target.client import AgentClient
from opsctl.target.target import Target
from tests.support.place import Place
from tests.support.until import until

# what shells, option parsers, terminals and formats stumble over, among anything else that UTF-8 can say
TRAPS = (
    "$(touch pwned)",
    "`id`",
    "; id",
    "it's",
    '"',
    "\\",
    "*",
    "~",
    "-n",
    "--",
    "a b",
    "\n",
    "\t",
    "{run}",
    "%s",
    "!",
)
ALL_TRAPS = "".join(TRAPS)
TEXT = st.one_of(
    st.sampled_from(TRAPS),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12),
    st.tuples(st.sampled_from(TRAPS), st.sampled_from(TRAPS)).map("".join),
)
FILE_NAME = TEXT.map(lambda text: text.replace("/", "_")).filter(lambda text: text not in ("", ".", ".."))
VARIABLE = st.from_regex(r"Q[A-Za-z0-9_]{0,8}", fullmatch=True)
few = examples(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

TELL = "import json, os, sys; f = open('told.part', 'w'); "
TELL += "json.dump([sys.argv[1:], {k: v for k, v in os.environ.items() if k[0] == 'Q'}], f); "
TELL += "f.close(); os.rename('told.part', 'told')"


def test_each_character_alone_is_a_word_of_its_own(target: Target) -> None:
    """A word that needs quoting for two reasons hides that one of them was forgotten."""
    characters = [*map(chr, range(1, 128)), "\u2603"]  # what a configuration can say
    words = ("", *TRAPS, *characters, *(f"a{one}b" for one in characters), "~root", "a=~", "{a,b}", "[a-z]", "#a")
    printer = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))"
    output = b""
    with contextlib.closing(target.start((target.python, "-c", printer, *words))) as channel:
        channel.close_input()
        while data := channel.read(60.0):
            output += data
    assert output.split(b"\0") == [os.fsencode(word) for word in words]


@examples(few, max_examples=2)
@example(name=f"-n{ALL_TRAPS}", content=b"\0")
@example(name="~", content=b"")
@given(name=FILE_NAME, content=st.binary(max_size=64))
def test_any_name_of_a_file_is_that_files_name(
    workspace: Workspace, place: Place, home: str, tmp_path: Path, name: str, content: bytes
) -> None:
    folder = f"{home[: home.rindex('/')]}/files"
    place.outside(folder).mkdir(exist_ok=True)
    (tmp_path / "sent").write_bytes(content)
    put(workspace, tmp_path / "sent", f"{folder}/{name}")
    assert [path.name for path in place.outside(folder).iterdir()] == [name]
    printed: list[bytes] = []
    run_command(workspace, ("cat", f"{folder}/{name}"), on_output=lambda stream, data: printed.append(data))
    assert b"".join(printed) == content
    get(workspace, f"{folder}/{name}", tmp_path / "came")
    assert (tmp_path / "came").read_bytes() == content
    place.outside(f"{folder}/{name}").unlink()


@examples(few, max_examples=2)
@example(name=f"-n{ALL_TRAPS}")
@given(name=FILE_NAME)
def test_any_home_is_that_folder(target: Target, place: Place, home: str, name: str) -> None:
    wanted = f"{home}/{name}"
    assert AgentClient(replace(target, home=wanted), operator=name).call("probe")["home"] == wanted
    assert [path.name for path in place.outside(home).iterdir()] == [name]
    assert list(place.outside(f"{wanted}/agent").iterdir())
    shutil.rmtree(place.outside(home))


@pytest.mark.tmux
@examples(few, max_examples=2)
@example(words=["", *TRAPS], variables={f"Q{n}": trap for n, trap in enumerate(("", *TRAPS))}, why=ALL_TRAPS)
@given(words=st.lists(TEXT, max_size=4), variables=st.dictionaries(VARIABLE, TEXT, max_size=3), why=TEXT)
def test_a_run_gets_its_words_and_variables(
    workspace: Workspace, place: Place, words: list[str], variables: dict[str, str], why: str
) -> None:
    argv = (workspace.target.python, "-c", TELL, *words)
    record = start(workspace, RunSpec("told", argv, environment=variables, why=why))
    told = place.outside(f"{record.folder}/told")
    until(told.exists)
    assert json.loads(told.read_bytes()) == [words, variables]
    assert record.spec.why == why
    until(lambda: place.outside(f"{record.folder}/exit.json").exists())
    assert not place.outside(f"{record.folder}/pwned").exists()
