"""The official files of the published configurations, and where their authors publish them.

`OFFICIAL` is the one list of names, sources, sizes, checksums and licences. `steep data` downloads
from it, and docs/data.md shows it as `markdown_table`. A size or checksum is given only where a
public source states it. Of all other files, `pipeline.corpus.fetch` records the checksum of the
first download.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Download:
    """One file on a server: the data itself, a gzip file, or a ZIP archive of several files.

    ``name`` is its name on the user's disk, ``page`` the page where people find it. ``sha256`` is
    the published checksum. ``size`` is the published size: bytes, or text such as "9.96 MB" if the
    page rounds.
    """

    name: str
    url: str
    page: str
    size: int | str | None = None
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class OfficialFile:
    """A file that published configurations read.

    ``path`` is its name below the directory of data, ``dataset`` the name that `steep data
    --dataset` takes, ``records`` the number of questions or passages. ``member`` is its name inside
    a ZIP archive.
    """

    path: str
    dataset: str
    download: Download
    records: int
    licence: str
    member: str | None = None


_MUSIQUE = Download(
    "musique_v1.0.zip",
    "https://drive.usercontent.google.com/download?id=1tGdADlNjWFaHLeZZGShh2IRcpO6Lv24h&export=download&confirm=t",
    "https://github.com/StonyBrookNLP/musique",
)
_2WIKI = Download(
    "data_ids_april7.zip",
    "https://www.dropbox.com/s/ms2m13252h6xubs/data_ids_april7.zip?dl=1",
    "https://github.com/Alab-NII/2wikimultihop",
)
_FLASHRAG = "https://huggingface.co/datasets/RUC-NLPIR/FlashRAG_datasets"
_HOTPOT = "http://curtis.ml.cmu.edu/datasets/hotpot"
_HOTPOT_PAGE = "https://hotpotqa.github.io"


def _flashrag(path: str, size: str) -> Download:
    return Download(path, f"{_FLASHRAG}/resolve/main/{path}", _FLASHRAG, size)


_NQ_LICENCE = "CC BY-SA 3.0"
_TRIVIAQA_LICENCE = "questions: rights with their authors, research use"

OFFICIAL: tuple[OfficialFile, ...] = (
    OfficialFile(
        "musique_ans_v1.0_train.jsonl", "musique", _MUSIQUE, 19_938, "CC BY 4.0",
        "data/musique_ans_v1.0_train.jsonl",
    ),
    OfficialFile(
        "musique_ans_v1.0_dev.jsonl", "musique", _MUSIQUE, 2_417, "CC BY 4.0",
        "data/musique_ans_v1.0_dev.jsonl",
    ),
    OfficialFile(
        "hotpot_train_v1.1.json", "hotpotqa",
        Download(
            "hotpot_train_v1.1.json", f"{_HOTPOT}/hotpot_train_v1.1.json", _HOTPOT_PAGE,
            566_426_227, "26650cf50234ef5fb2e664ed70bbecdfd87815e6bffc257e068efea5cf7cd316",
        ),
        90_447, "CC BY-SA 4.0",
    ),
    OfficialFile(
        "hotpot_dev_distractor_v1.json", "hotpotqa",
        Download(
            "hotpot_dev_distractor_v1.json", f"{_HOTPOT}/hotpot_dev_distractor_v1.json",
            _HOTPOT_PAGE, 46_320_117,
            "4e9ecb5c8d3b719f624d66b60f8d56bf227f03914f5f0753d6fa1b359d7104ea",
        ),
        7_405, "CC BY-SA 4.0",
    ),
    OfficialFile(
        "2wikimultihopqa/train.json", "2wiki", _2WIKI, 167_454, "Apache 2.0", "train.json"
    ),
    OfficialFile("2wikimultihopqa/dev.json", "2wiki", _2WIKI, 12_576, "Apache 2.0", "dev.json"),
    OfficialFile(
        "nq/train.jsonl", "nq", _flashrag("nq/train.jsonl", "9.96 MB"), 79_168, _NQ_LICENCE
    ),
    OfficialFile("nq/dev.jsonl", "nq", _flashrag("nq/dev.jsonl", "1.07 MB"), 8_757, _NQ_LICENCE),
    OfficialFile("nq/test.jsonl", "nq", _flashrag("nq/test.jsonl", "488 kB"), 3_610, _NQ_LICENCE),
    OfficialFile(
        "triviaqa/test.jsonl", "triviaqa", _flashrag("triviaqa/test.jsonl", "4.8 MB"), 11_313,
        _TRIVIAQA_LICENCE,
    ),
    OfficialFile(
        "popqa/test.jsonl", "popqa", _flashrag("popqa/test.jsonl", "8.53 MB"), 14_267, "MIT"
    ),
    OfficialFile(
        "bamboogle/test.jsonl", "bamboogle", _flashrag("bamboogle/test.jsonl", "17 kB"), 125, "MIT"
    ),
    OfficialFile(
        "psgs_w100.tsv", "psgs_w100",
        Download(
            "psgs_w100.tsv.gz",
            "https://dl.fbaipublicfiles.com/dpr/wikipedia_split/psgs_w100.tsv.gz",
            "https://github.com/facebookresearch/DPR",
        ),
        21_015_324, "Wikipedia text: CC BY-SA 3.0; DPR: CC BY-NC 4.0",
    ),
)  # fmt: skip

DATASETS = tuple(dict.fromkeys(file.dataset for file in OFFICIAL))


def markdown_table(files: tuple[OfficialFile, ...] = OFFICIAL) -> str:
    """The table of docs/data.md: one row per file."""
    rows = [
        "| file in `DATA` | `DATASETS` | records | published as | size | SHA-256 | licence |",
        "|---|---|---|---|---|---|---|",
    ]
    for file in files:
        load = file.download
        page = (
            load.page.partition("://")[2]
            .removeprefix("github.com/")
            .removeprefix("huggingface.co/")
        )
        name = f"{file.member} of {load.name}" if file.member else load.name
        size = f"{load.size:,}" if isinstance(load.size, int) else load.size or ""
        checksum = f"{load.sha256[:8]}…" if load.sha256 else ""
        rows.append(
            f"| `{file.path}` | {file.dataset} | {file.records:,} | {name} "
            f"([{page}]({load.page})) | {size} | {checksum} | {file.licence} |"
        )
    return "\n".join(rows) + "\n"
