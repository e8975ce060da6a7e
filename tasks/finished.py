"""The finished stages of a run by label, such as ``corpus``, ``pair-1`` or ``evaluate-policy-0``.

Input: a configuration's task, or the directory of a run. Output: the directories of complete outputs.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.core.errors import StoreError
from pipeline.run.store import MANIFEST, read_manifest
from tasks.base import StageTask, walk
from tasks.run import stage_names
from tasks.sharding import ShardTask


def complete_outputs(report: StageTask) -> dict[str, Path]:
    """The complete outputs of a configuration's stages, in running order."""
    return {task.label: task.directory for task in walk(report) if task.complete()}


def newest_outputs(directory: Path) -> dict[str, Path]:
    """The complete outputs in the directory of a run, such as ``runs/embedded``, without shards.

    Where a stage has several, the one that the newest stage after it has used is taken. Raises
    StoreError when the directory holds no completed stage.
    """
    shards = stage_names(ShardTask)
    dated = [
        (manifest.stat().st_mtime_ns, manifest.parent)
        for manifest in (directory / "store").glob(f"*/*/{MANIFEST}")
        if manifest.parent.parent.name not in shards
    ]
    if not dated:
        raise StoreError(f"{directory}: no completed stages; expected a directory of runs/")
    newest_first = [path for _, path in sorted(dated, reverse=True)]
    by_fingerprint = {path.name: path for path in newest_first}
    outputs: dict[str, Path] = {}

    def take(path: Path) -> None:
        manifest = read_manifest(path)
        key = manifest["key"]
        label = key["stage"] if key["round"] is None else f"{key['stage']}-{key['round']}"
        if label in outputs:
            return
        outputs[label] = path
        for fingerprint in manifest.get("made_from", key["inputs"]).values():
            if fingerprint in by_fingerprint:  # the closed world is not in the run's directory
                take(by_fingerprint[fingerprint])

    for path in newest_first:
        take(path)
    return outputs
