"""Records survive the wire, and a newer writer does not break an older reader."""

from __future__ import annotations

import json

from opsctl.records.call import from_json, to_json
from opsctl.records.events import GpuSample, ProcessSample, Sample
from opsctl.records.process import ProcessIdentity
from opsctl.records.run import Attempt, ExitRecord, RunRecord, RunSpec
from opsctl.records.verdict import Verdict

EXAMPLES = [
    RunRecord("r", RunSpec("n", ("a", "it's"), environment={"A": "b"}), 1.5, "s", "m", ProcessIdentity("b", 1, 2, 3)),
    ExitRecord("r", (Attempt(1, 0.0, 1.0, None, 9),), Verdict("crashed", evidence=("x",)), 7),
    Sample(1.0, (GpuSample(0, used_mib=1.0),), ProcessSample(2, "RS")),
]


def test_every_record_comes_back_equal() -> None:
    for record in EXAMPLES:
        assert from_json(type(record), json.loads(json.dumps(to_json(record)))) == record


def test_unknown_keys_are_left_out() -> None:
    assert from_json(Verdict, {"verdict": "healthy", "from_the_future": 1}) == Verdict("healthy")
