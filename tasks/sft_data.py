"""Task of stage ``sft-data``: supervised trajectories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pipeline.core.formats import DEFAULT_FORMAT
from tasks.base import STAGES, TRAJECTORIES, StageTask
from tasks.corpus import Corpus
from tasks.fingerprint import base_model_files, model_identity, tool_files
from tasks.graph import Graph, Hypergraph
from tasks.opened import Opened, Work, chat, policy_engine
from tasks.planning.clock import Clock
from tasks.planning.sizes import ANSWER_BYTES
from tasks.questions import QUESTIONS_READ, questions
from tasks.sharding import DivisibleTask


class SftData(DivisibleTask):
    """Supervised trajectories from MuSiQue-shaped decompositions, or by rejection sampling."""

    stage = "sft-data"
    help = "supervised trajectories"
    version = 6
    shards_block = "sft_data"
    entry = "pipeline.stages.sft_data:run"
    shard_entry = "pipeline.stages.sft_data:run_shard"
    merge_entry = "pipeline.stages.sft_data:merge"
    reads = ("sft_data", "prompt", "grammar", "seed")
    reads_at_times = (
        *("format", "retrieval.variant", "engine", "model"),
        *("graph.model", "graph.engine", "graph.endpoint", "corpus.chunk_words"),
    )

    @property
    def runs_model(self) -> bool:
        memory = self.settings.sft_data.memory is not None
        asks = self._asks_own_model or memory or self._asks_graph_model
        return asks and not self._rejects

    @property
    def _rejects(self) -> bool:
        return self.settings.sft_data.rejection_sampling is not None

    @property
    def _teacher_file(self) -> Path | None:
        chosen = self.settings.sft_data.rejection_sampling
        return None if chosen is None else chosen.file

    def upstream(self) -> dict[str, StageTask]:
        if self._teacher_file is not None:
            return {"questions": questions(self, "sft")}
        if self._rejects:
            # By name, against an import cycle: sampling reads policies, of which one is made here.
            return {"trajectories": self.clone(STAGES["sft-sample"])}
        facts = Hypergraph if self.settings.teaches_hyperedges else Graph
        return {
            "corpus": self.clone(Corpus),
            "graph": self.clone(facts),
            "questions": questions(self, "sft"),
        }

    @property
    def input_files(self) -> Mapping[str, tuple[str, ...]]:
        return {"trajectories": TRAJECTORIES, **QUESTIONS_READ}

    @property
    def _asks_own_model(self) -> bool:
        settings = self.settings.sft_data
        return "llm" in (settings.triplets, settings.selector, settings.rewriter)

    @property
    def _asks_graph_model(self) -> bool:
        """Whether the graph's model may extract from paragraphs that the corpus does not hold."""
        settings = self.settings
        by_graph = settings.sft_data.triplets == "graph" and settings.graph.source == "llm"
        return by_graph and not settings.teaches_hyperedges

    def files(self) -> dict[str, Path | str]:
        settings = self.settings.sft_data
        if self._rejects:
            teacher = self._teacher_file
            return ({"trajectories": teacher} if teacher else {}) | tool_files(self.settings)
        files = {"model": model_identity(settings.model)} if settings.model else {}
        if self._asks_graph_model and self.settings.graph.model:
            files["graph model"] = model_identity(self.settings.graph.model)
        if settings.memory is not None:
            files |= base_model_files(self.settings)
        return files | tool_files(self.settings)

    def reading(self) -> tuple[str, ...]:
        """Adds the settings of the models that the stage asks, and of the chunks that it makes."""
        settings, names = self.settings.sft_data, [*self.reads]
        if self.settings.format != DEFAULT_FORMAT:
            names += ["format"]
        if self._rejects:
            return (*names, "model.base")
        if settings.memory is not None:
            names += ["engine", "model"]
        if self._asks_graph_model:
            names += ["graph.model", "graph.engine", "graph.endpoint"]
        if self._asks_graph_model or settings.triplets == "llm":
            names += ["corpus.chunk_words"]
        return tuple(names)

    def slice(self) -> dict[str, Any]:
        """Adds the kinds of shown items."""
        values = super().slice()
        if self.settings.method.sft_shows_retrieved_kinds and not self._rejects:
            values["retrieval.shows"] = list(self.settings.retrieval.shows)
        return values

    def opens(self) -> Iterator[Opened]:
        """The models that are asked in turn, and the policy that answers from memory."""
        settings = self.settings
        if self._rejects:
            return
        if self._asks_own_model:
            yield from chat("sft_data", settings.sft_data)
        if self._asks_graph_model:
            yield from chat("graph", settings.graph, turn=1)
        if settings.sft_data.memory is not None:
            yield policy_engine(settings, turn=2)

    def work(self, clock: Clock) -> Work:
        block, a = self.settings.sft_data, clock.rates
        examples = sum(block.sizes.values()) + sum(block.test_sizes.values())
        asked = (one for one in self.opens() if one.turn == 0)
        shared = {"calls": a.helper_calls, "repeated": a.instruction_tokens}
        answers = (clock.answer(one, a.helper_tokens, a.helper_written, **shared) for one in asked)
        return examples * sum(answers, Work(disk=10 * ANSWER_BYTES))
