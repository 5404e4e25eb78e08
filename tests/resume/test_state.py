"""States that commits store and a later run gets back."""

from __future__ import annotations

import pytest

from scrapy_altsched.resume.state import ReadNote, ResumeState, ResumeStates


@pytest.mark.parametrize("resumed", [True, False])
def test_a_finished_job_leaves_only_what_outlives_it(resumed: bool) -> None:
    restored: list[tuple[str, bytes | None]] = []
    states = ResumeStates({"a": b"1", "b": b"2"}.get, resumed=resumed)
    for name in "ab":

        def restore(read: ReadNote, name: str = name) -> None:
            restored.append((name, read(name)))

        state = ResumeState(capture=dict, restore=restore, outlives_job=name == "b")
        states.add(state)
    assert restored == ([("a", b"1")] if resumed else []) + [("b", b"2")]


def test_a_commit_stores_the_notes_of_all_states_and_each_is_told() -> None:
    told: list[str] = []
    states = ResumeStates({}.get, resumed=False)
    states.add(ResumeState(capture=lambda: {"a": b"1"}, note_commit=lambda: told.append("a")))
    states.add(ResumeState(capture=lambda: {"b": b"2", "c": b""}))
    assert states.capture() == {"a": b"1", "b": b"2", "c": b""}
    states.note_commit()
    states.note_closing()
    assert told == ["a"]
