"""Work of a stage in another number of shards, which its present number cannot use.

The number of shards is in the fingerprint of a shard, so its checkpoints and its output are those of one division.
Input: the tasks of a run. Output: a sentence for each stage that is incomplete and has such work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pipeline.run.content import holds_checkpoints
from pipeline.run.store import Store
from tasks.base import StageTask
from tasks.sharding import ShardedTask

_MOST = 64  # shards; larger numbers are not looked for, because every fingerprint takes 0.1 ms


def unused_work(tasks: Iterable[StageTask]) -> Iterator[str]:
    """A sentence for each incomplete stage whose work in another number of shards would be made again."""
    for task in tasks:
        if not isinstance(task, ShardedTask) or task.complete():
            continue
        now = task.shard_count
        for count, worked in sorted(_divisions(task).items()):
            had = "the undivided stage" if count == 1 else f"{worked} of {count} shards"
            asked = "undivided" if now == 1 else f"in {now} shards"
            yield (
                f"{task.label}: checkpoints or outputs of {had} are there, and it runs {asked} now, which makes their "
                f"work again; set its number of shards to {count} to continue from them"
            )


def _divisions(task: ShardedTask) -> dict[int, int]:
    """The numbers of shards other than the present one, and how many of the shards have work in the store."""
    found: dict[int, int] = {}
    shards = list(task.shards().values())
    # Checkpoints of a divided stage whose shards are complete are those of the join.
    if not all(shard.complete() for shard in shards) and holds_checkpoints(
        task.store.checkpoint_dir(task.key)
    ):
        found[1] = 1
    worked = _fingerprints(task.store, task.shard_kind.stage)
    worked -= {shard.key.fingerprint for shard in shards}
    key = task.shard(0).key
    for count in range(2, _MOST + 1):
        if not worked:
            break
        own = {
            replace(
                key, settings={**key.settings, "shard": {"number": number, "of": count}}
            ).fingerprint
            for number in range(count)
        }
        if own & worked:
            found[count] = len(own & worked)
            worked -= own
    return found


def _fingerprints(store: Store, stage: str) -> set[str]:
    """The fingerprints of a stage with an output or with checkpoints."""
    folder = store.root / stage
    completed = {path.name for path in store.completed(stage)}
    partial = {path.stem for path in folder.glob("*.partial") if holds_checkpoints(path)}
    return completed | partial
