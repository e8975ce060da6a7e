"""The importer of other systems' outputs, for Search-R1 and Graph-R1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.core.errors import InputError
from pipeline.core.record_io import write_jsonl
from pipeline.core.records import ContextItem, Trajectory
from pipeline.rollout.importers import SkippedLine, iterate_outputs
from tests.methods.prograph.test_prograph_grammar import FIRST as PROGRAPH_QUERY
from tests.methods.prograph.test_prograph_grammar import LAST as PROGRAPH_ANSWER
from tests.methods.search_r1.test_search_r1_grammar import OUTPUT as SEARCH_R1_OUTPUT


def _write(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def import_outputs(paths: list[Path], **options: str) -> tuple[list[Trajectory], list[SkippedLine]]:
    items = list(iterate_outputs(paths, **options))
    trajectories = [item for item in items if isinstance(item, Trajectory)]
    return trajectories, [item for item in items if isinstance(item, SkippedLine)]


ROW = {"dataset": "NQ", "question": "who?", "golden": ["Röntgen"], "full_output": SEARCH_R1_OUTPUT}


def test_lines_that_cannot_be_imported_are_reported_with_their_reason(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "results.jsonl",
        ROW,
        ROW | {"golden": []},
        ROW | {"full_output": None},
        ROW | {"golden": {"style": "rule"}},
        ROW | {"full_output": "just an answer"},
    )
    trajectories, skipped = import_outputs([path])
    assert [item.trajectory_id.partition("/")[2] for item in trajectories] == ["results/0"]
    assert [str(line).partition("results.jsonl:")[2] for line in skipped] == [
        "2: no gold answers; looked for golden, golden_answers, answers, gold, ground_truth, "
        "gts, gt, target, answer, possible_answers",
        "3: no model output; looked for full_output, output, response, generation, "
        "sequences_str, completion",
        '4: golden: expected a text or a list, got {"style": "rule"}; write lists as JSON',
        "5: the output has none of <think>, <search>, <answer>, so its grammar is not search-r1",
    ]
    with pytest.raises(InputError, match="no line of this file can be imported"):
        import_outputs([_write(tmp_path / "other.jsonl", ROW | {"golden": None})])


def test_the_same_question_in_two_files_keeps_one_question_id(tmp_path: Path) -> None:
    files = [_write(tmp_path / f"{name}.jsonl", ROW) for name in ("base", "tuned")]
    trajectories, _ = import_outputs(files)
    assert len({item.question_id for item in trajectories}) == 1
    assert [(item.policy, item.sample) for item in trajectories] == [("base", 0), ("tuned", 1)]
    assert len({item.trajectory_id for item in trajectories}) == 2


@pytest.mark.parametrize("score", ["NaN", "-Infinity", "1e999", '"nan"'])
def test_knowledge_with_a_score_that_no_record_holds_is_imported(
    tmp_path: Path, score: str
) -> None:
    """Before, the command ended with a traceback."""
    results = f'{{"results": [{{"<knowledge>": "A fact.", "<coherence>": {score}}}]}}'
    output = f"{PROGRAPH_QUERY}<knowledge>{results}</knowledge>{PROGRAPH_ANSWER}"
    row = {"question": "Where?", "golden": ["Alabama"], "output": output}
    [trajectory], _ = import_outputs([_write(tmp_path / "a.jsonl", row)], grammar_name="prograph")
    assert trajectory.steps[0].context == [ContextItem("hyperedge", "", "", "A fact.", 0.0)]
    write_jsonl(tmp_path / "b.jsonl", [trajectory])
