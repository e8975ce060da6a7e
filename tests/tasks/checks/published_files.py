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
SINGLE = {  # no question of one file repeats one of another
    "nq/train": "What is", "nq/dev": "Who built", "nq/test": "Where lies", "triviaqa/test": "When began",
    "popqa/test": "Why fell", "bamboogle/test": "How tall was",
}  # fmt: skip
HELD_OUT = {"question": "Do both lakes lie in one country?"}


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
    write_lines(root / "musique_ans_v1.0_dev.jsonl", [musique(10_000 + n, 2) for n in range(3)])
    for name, own in (("hotpot_train_v1.1", {}), ("hotpot_dev_distractor_v1", HELD_OUT)):
        hotpotqa = [HOTPOTQA | own | {"_id": f"h{n}"} for n in range(3)]
        (root / f"{name}.json").write_text(json.dumps(hotpotqa))
    (root / "2wikimultihopqa").mkdir()
    triples = [["A", "mouth", "X"], ["B", "mouth", "Y"]]
    for split, own in (("train", {}), ("dev", HELD_OUT)):
        wiki2 = [HOTPOTQA | own | {"_id": f"w{n}", "evidences": triples} for n in range(3)]
        (root / f"2wikimultihopqa/{split}.json").write_text(json.dumps(wiki2))
    for name, asked in SINGLE.items():
        questions = [{"question": f"{asked} {n}?", "golden_answers": ["x"]} for n in range(3)]
        write_lines(root / f"{name}.jsonl", questions)
    rows = [f'{n}\t"Text {n}."\t"T{n}"' for n in range(1, 30)]
    (root / "psgs_w100.tsv").write_text("\n".join(["id\ttext\ttitle", *rows, ""]))
    return root


def write_lines(path: Path, records: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
