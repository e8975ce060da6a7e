"""The output of a task, if it exists: under the task's own fingerprint, or found by content.

An output with the task's own fingerprint counts as long as the content of its inputs has not
changed. Otherwise the store may hold an output that was made under other settings from inputs with
the same content (`pipeline.engine.store`); the task then reuses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.engine.store import content_key, content_of, manifest_of

if TYPE_CHECKING:
    from pipeline.engine.stage import StageTask


@dataclass(frozen=True)
class Output:
    """A completed output; ``reused`` says that it was made under another fingerprint."""

    directory: Path
    reused: bool = False


class Outputs:
    """The outputs of tasks at one moment; each task is looked up once."""

    def __init__(self) -> None:
        self._found: dict[str, Output | None] = {}
        self._contents: dict[str, dict[str, str] | None] = {}

    def of(self, task: StageTask) -> Output | None:
        """The output of a task, or None. Raises StoreError when the disk fails."""
        if task.task_id not in self._found:
            self._found[task.task_id] = self._find(task)
        return self._found[task.task_id]

    def _find(self, task: StageTask) -> Output | None:
        own = task.store.directory(task.key)
        if task.store.complete(task.key):
            manifest = manifest_of(own)
            # A damaged manifest is reported where the output is read.
            made_from = None if manifest is None else manifest.get("content_key")
            if made_from is None or self.content_key(task) in (made_from, None):
                return Output(own)
        wanted = self.content_key(task) if task.reusable else None
        if wanted is None:
            return None
        same = task.store.newest(task.stage, lambda made: made.get("content_key") == wanted)
        return Output(same[0][0], reused=True) if same else None

    def content_key(self, task: StageTask) -> str | None:
        """The content key of a task, or None as for `contents`."""
        contents = self.contents(task)
        return None if contents is None else content_key(task.key, contents)

    def contents(self, task: StageTask) -> dict[str, str] | None:
        """The content of a task's inputs by name.

        None while an input is incomplete, is on another machine, or has no recorded content.
        """
        if task.task_id not in self._contents:
            self._contents[task.task_id] = self._contents_of(task)
        return self._contents[task.task_id]

    def _contents_of(self, task: StageTask) -> dict[str, str] | None:
        contents = {}
        for name, read in task.inputs.items():
            output = self.of(read)
            manifest = None if output is None else manifest_of(output.directory)
            if manifest is None:
                return None
            content = content_of(manifest, task.input_files.get(name, ("*",)))
            if content is None:
                return None
            contents[name] = content
        return contents
