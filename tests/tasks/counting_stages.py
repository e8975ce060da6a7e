"""Stage functions for the tests of the store; they count their executions in a file."""

import json
import os
import resource
import signal
import time
from pathlib import Path

from pipeline.core.errors import InputError
from pipeline.engine.context import StageContext


def _count(context: StageContext) -> None:
    log = Path(os.environ["EXECUTIONS"])
    with log.open("a") as stream:
        stream.write(f"{context.stage}\n")


def first(context: StageContext) -> dict[str, int]:
    _count(context)
    (context.output / "number.txt").write_text(str(context.config.retrieval.top_k))
    return {"rows": 1}


def second(context: StageContext) -> dict[str, int]:
    """Works in three batches with a checkpoint each; with the file KILL it dies after the second."""
    _count(context)
    number = int((context.inputs["first"] / "number.txt").read_text())
    for batch in range(3):
        done = context.checkpoint_dir / f"{batch}.txt"
        if done.exists():
            continue
        with Path(os.environ["EXECUTIONS"]).open("a") as stream:
            stream.write(f"batch {batch}\n")
        done.write_text(str(number * batch))
        if batch == 1 and Path(os.environ["KILL"]).exists():
            (context.output / "half.txt").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
    total = sum(int((context.checkpoint_dir / f"{batch}.txt").read_text()) for batch in range(3))
    (context.output / "total.txt").write_text(str(total))
    return {"rows": 3}


def warns(context: StageContext) -> dict[str, int]:
    """Has something to say beside its counts."""
    context.warn("2 of 2 rows are odd")
    (context.output / "rows.txt").write_text("1 2")
    return {"rows": 2}


def rounded(context: StageContext) -> dict[str, int]:
    """Writes two files: retrieval.top_k in tens, which often stays the same, and exactly."""
    _count(context)
    number = context.config.retrieval.top_k
    (context.output / "tens.txt").write_text(str(number // 10))
    (context.output / "exact.txt").write_text(os.environ.get("EXACT", str(number)))
    (context.output / "timing.json").write_text(json.dumps({"now": time.time()}))
    return {"rows": 1}


def follows(context: StageContext) -> dict[str, int]:
    """Copies the checkpoint that an earlier attempt has left, else its input."""
    _count(context)
    checkpoint = context.checkpoint_dir / "copied.txt"
    if not checkpoint.exists():
        checkpoint.write_text((context.inputs["rounded"] / context.config.name).read_text())
    if Path(os.environ["KILL"]).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    (context.output / "copy.txt").write_text(checkpoint.read_text())
    return {"rows": 1}


def of_round(context: StageContext) -> dict[str, int]:
    """Writes the threshold of its round."""
    (context.output / "text.txt").write_text(str(context.config.pairs.easy_outcome))
    return {"rows": 1}


def complains(context: StageContext) -> dict[str, int]:
    raise InputError.at("questions.jsonl", "answer is missing; add it", 7)


def writes_nothing(context: StageContext) -> dict[str, int]:
    return {}


def copies(context: StageContext) -> dict[str, int]:
    """Copies the raw file ``numbers.txt``; with the file KILL another program then changes it."""
    _count(context)
    source = Path(context.config.data.root or ".") / "numbers.txt"
    checkpoint = context.checkpoint_dir / "copied.txt"
    if not checkpoint.exists():
        checkpoint.write_text(source.read_text())
    if Path(os.environ["KILL"]).exists():
        source.write_text("changed")
    (context.output / "copy.txt").write_text(checkpoint.read_text())
    return {"rows": 1}


def waits(context: StageContext) -> dict[str, int]:
    """Counts 4 of 10 items and writes a checkpoint, waits for the file RELEASE, and counts the rest."""
    _count(context)
    checkpoint = context.checkpoint_dir / "checkpoint.txt"
    if not checkpoint.exists():
        checkpoint.write_text("kept")
    print("working", flush=True)
    context.progress.start(10, "items")
    context.progress.advance(4)
    time.sleep(1.1)  # the file is written twice a second
    context.progress.show(loss=0.5)
    while not Path(os.environ["RELEASE"]).exists():
        time.sleep(0.02)
    context.progress.advance(6)
    (context.output / "text.txt").write_text(checkpoint.read_text())
    return {"rows": 10}


def ends(context: StageContext) -> dict[str, int]:
    """Ends in the way that the run's name says: a signal, full, limit, files, memory or exit."""
    way = context.config.name
    print("last words", flush=True)
    if way.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, way))
        time.sleep(60)
    if way == "full":
        with open("/dev/full", "wb", buffering=0) as stream:
            stream.write(b"records")
    if way == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        (context.output / "large.txt").write_text("x" * 2000)
    if way == "files":
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
        streams = [(context.output / f"{n}.txt").open("w") for n in range(20)]
        raise AssertionError(streams)
    if way == "memory":
        bytearray(2**60)
    if way == "exit":
        os._exit(7)
    raise AssertionError(way)


def part(context: StageContext) -> dict[str, int]:
    """One shard of three numbers; with the file KILL the second shard dies after its checkpoint."""
    with Path(os.environ["EXECUTIONS"]).open("a") as stream:
        stream.write(f"part {context.shard} of {context.shards}\n")
    done = context.checkpoint_dir / "done.txt"
    if not done.exists():
        with Path(os.environ["EXECUTIONS"]).open("a") as stream:
            stream.write(f"work {context.shard}\n")
        numbers = range(12)[context.shard :: context.shards]
        done.write_text(
            " ".join(str(number * context.config.retrieval.top_k) for number in numbers)
        )
    if context.shard == 1 and Path(os.environ["KILL"]).exists():
        os.kill(os.getpid(), signal.SIGKILL)
    (context.output / "numbers.txt").write_text(done.read_text())
    return {"rows": len(done.read_text().split())}


def joins(context: StageContext) -> dict[str, int]:
    _count(context)
    shards = [path for name, path in sorted(context.inputs.items()) if name.startswith("shard-")]
    texts = [(shard / "numbers.txt").read_text() for shard in shards]
    numbers = sorted(int(number) for text in texts for number in text.split())
    (context.output / "numbers.txt").write_text(" ".join(map(str, numbers)))
    return {"rows": len(numbers)}
