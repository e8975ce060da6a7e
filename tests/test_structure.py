"""Modules import each other in no circle, and files are read in one place."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for types alone, and inside functions, count as well."""
    graph = grimp.build_graph("pipeline", "tasks", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    TopologicalSorter({name: found - {name} for name, found in imports.items()}).prepare()


# Readers of files. All others call core/input_files.py or row_files.py, whose errors name the place.
READERS = {
    "json.load",
    "json.loads",
    "pq.read_table",
    "pq.ParquetFile",
    "yaml.load",
    "yaml.safe_load",
}
READING_MODULES = {
    "pipeline/core/row_files.py",  # rows, Parquet and Arrow
    "pipeline/core/columns.py",  # tables of the graph; the stage's inputs were checked
    "tasks/index.py",  # the same
    "pipeline/engine/files/checkpoints.py",  # checkpoints whose hash was checked
}
TEXT_IN_MEMORY = {  # text that came from a pipe, a cache or a model
    "pipeline/cli/ask.py",  # a line of standard input
    "pipeline/core/atomic.py",  # the beginning of a file that an output would replace
    "pipeline/engine/process/worker.py",
    "pipeline/engine/process/fork_server.py",  # a socket, and standard input
    "pipeline/engine/process/supervisor.py",
    "pipeline/config/yaml_files.py",  # text that `read_text` has read
    "pipeline/knowledge/corpus/prose.py",  # the front matter of a Markdown file
    "pipeline/llm/chat.py",
    "pipeline/rollout/conversations/forms.py",  # arguments of calls in a log
    "pipeline/methods/prograph/grammar.py",
    "pipeline/engine/execution/cluster.py",  # arguments, standard input, lines of an attempt's own reports
}


def test_files_are_read_in_one_place() -> None:
    readers = set()
    for package in ("pipeline", "tasks"):
        for path in sorted((ROOT / package).rglob("*.py")):
            calls = (
                node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
            )
            if any(ast.unparse(call.func) in READERS for call in calls):
                readers.add(path.relative_to(ROOT).as_posix())
    assert readers == READING_MODULES | TEXT_IN_MEMORY
