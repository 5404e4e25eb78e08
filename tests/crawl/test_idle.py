"""What a scheduler answers while nothing is pending, and when it has closed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..crawls import QUICK, run_python
from ..servers import RedisServer
from ..sites import Page, Site

#: Where requests are kept -> settings.
KINDS: dict[str, dict[str, Any]] = {
    "memory": {},
    "jobdir": {"JOBDIR": True},
    "synced": {"JOBDIR": True, "ALTSCHED_SYNC": True},
    "shared": {"ALTSCHED_SHARED": True},
    "both": {"ALTSCHED_SHARED": True, "JOBDIR": True},
}


def test_every_method_of_an_idle_scheduler_knows_that_it_is_there(
    tmp_path: Path, server: RedisServer
) -> None:
    with Site({"/0": Page(["/1", "/2"]), "/1": Page(), "/2": Page()}) as site:
        jobs = [
            {
                "spider": "pages",
                "arguments": {"url": f"{site.url}/0"},
                "settings": {
                    **QUICK,
                    "EXTENSIONS": {"crashsite.observers.Idle": 1},
                    "REDIS_PORT": server.port,
                    "ALTSCHED_SHARED_KEY": kind,
                    **settings,
                    **({"JOBDIR": str(tmp_path / kind)} if "JOBDIR" in settings else {}),
                },
            }
            for kind, settings in KINDS.items()
        ]
        done = run_python("-m", "crashsite.several", json.dumps(jobs))
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    found = {(answer.pop("name"), answer.pop("when")): answer for answer in answers}
    for kind, settings in KINDS.items():
        survives, has_jobdir = bool(settings), "JOBDIR" in settings
        idle, end = found[kind, "idle"], found[kind, "end"]
        assert (idle.pop("position") is None, end.pop("position")) == (not survives, None), kind
        nothing = {"bool": True, "len": 0, "pending": False, "durable": survives}
        nothing["queues"] = [0, 0 if has_jobdir else None]
        assert idle == {**nothing, "checkpoint": survives, "next": None}, kind
        assert end == {**nothing, "checkpoint": False}, kind
