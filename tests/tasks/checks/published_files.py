"""Small files with the names and formats that the published configurations read."""

import json
from pathlib import Path

PARAGRAPHS = [
    {"idx": n, "title": f"T{n}", "paragraph_text": f"Text {n}.", "is_supporting": True}
    for n in range(4)
]
HOTPOTQA = {
    "question": "Are A and B rivers?",
    "answer": "yes",
    "type": "comparison",
    "level": "hard",
    "supporting_facts": [["A", 1], ["B", 0]],
    "context": [["A", ["Long.", " A is a river."]], ["B", ["B is a river."]]],
}
SINGLE = ["nq/train", "nq/dev", "nq/test", "triviaqa/test", "popqa/test", "bamboogle/test"]


def musique(number: int, hops: int) -> dict:
    """A question of MuSiQue with ``hops`` steps."""
    steps = [
        {"id": n, "question": f"Q{number} {n}?", "answer": f"A{n}", "paragraph_support_idx": n}
        for n in range(hops)
    ]
    return {
        "id": f"{hops}hop__{number}",
        "paragraphs": PARAGRAPHS,
        "question": f"Question {number} of {hops} hops?",
        "question_decomposition": steps,
        "answer": f"A{hops - 1}",
        "answer_aliases": [],
        "answerable": True,
    }


def write_published_files(root: Path, *, decomposed: int = 1000) -> Path:
    """All data files below ``root``, with ``decomposed`` MuSiQue questions of 2, 3 and 4 hops each."""
    write_lines(
        root / "musique_ans_v1.0_train.jsonl",
        [musique(number, hops) for number in range(decomposed) for hops in (2, 3, 4)],
    )
    write_lines(root / "musique_ans_v1.0_dev.jsonl", [musique(n, 2) for n in range(3)])
    hotpotqa = [HOTPOTQA | {"_id": f"h{n}"} for n in range(3)]
    for name in ("hotpot_train_v1.1.json", "hotpot_dev_distractor_v1.json"):
        (root / name).write_text(json.dumps(hotpotqa))
    (root / "2wikimultihopqa").mkdir()
    triples = [["A", "mouth", "X"], ["B", "mouth", "Y"]]
    for split in ("train", "dev"):
        wiki2 = [HOTPOTQA | {"_id": f"w{n}", "evidences": triples} for n in range(3)]
        (root / f"2wikimultihopqa/{split}.json").write_text(json.dumps(wiki2))
    for name in SINGLE:
        questions = [{"question": f"What is {n}?", "golden_answers": ["x"]} for n in range(3)]
        write_lines(root / f"{name}.jsonl", questions)
    rows = [f'{n}\t"Text {n}."\t"T{n}"' for n in range(1, 30)]
    (root / "psgs_w100.tsv").write_text("\n".join(["id\ttext\ttitle", *rows, ""]))
    return root


def write_lines(path: Path, records: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
