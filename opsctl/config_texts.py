"""The kinds of text that opsctl.yaml holds; a wrong one is refused in words that say what may stand there."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field


def shaped(pattern: str, what: str) -> AfterValidator:
    """Refuses a text that is not `what`, in these words: a pattern tells nobody what may stand there."""

    def checked(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(f"{value!r} is not {what}")
        return value

    return AfterValidator(checked)


NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
Name = Annotated[str, shaped(NAME, "a name of letters, digits, dot, dash and underscore, the first a letter or digit")]
# it becomes a word of its own, and must not look like an option
UserName = Annotated[
    str,
    Field(coerce_numbers_to_str=True),
    shaped(r"[A-Za-z_][A-Za-z0-9._-]*|[0-9]+(:[0-9]+)?", "a user's name, a uid or uid:gid"),
]


# words of ssh's own command line: neither may look like an option
Destination = Annotated[str, shaped(r"[A-Za-z0-9_.\[][^\s,]*", "user@host, a host or a name of ssh_config")]
Jump = Annotated[str, shaped(r"[A-Za-z0-9_.\[][^\s]*", "a host, or several with commas between them")]
# not relative: commands run in any folder
LocalPath = Annotated[str, shaped(r"[~/].*", "an absolute path, or one that begins with ~")]
Home = Annotated[str, shaped(r"~|(~?/.*)", "an absolute path, or one that begins with ~/")]

GpuName = Annotated[
    str,
    Field(coerce_numbers_to_str=True),
    shaped(r"[A-Za-z0-9][A-Za-z0-9:._-]*", "an index or a UUID of nvidia-smi"),
]
# the source is a volume's name or a folder of the host
Volume = Annotated[
    str, shaped(r"[^:]+:/[^:]*(:(ro|rw))?", "SOURCE:FOLDER or SOURCE:FOLDER:ro, FOLDER an absolute path")
]
ShmSize = Annotated[str, shaped(r"[0-9]+[bkmg]?", "a size such as 16g or 512m")]

# https, or plain http to a gateway on the target itself, which no wire carries
Address = Annotated[
    str,
    shaped(
        r"(https://.*|http://(127\.0\.0\.1|localhost|\[::1\])(:\d+)?(/.*)?)?",
        "an https address (http only to localhost)",
    ),
]
