"""Stage ``world``: writes the closed world's corpus and questions in native data formats."""

from __future__ import annotations

from pipeline.core.errors import ConfigError
from pipeline.run.context import StageContext


def run(context: StageContext) -> dict[str, int]:
    """Write documents, annotations and questions of the configured world.

    Returns the number of records per file. Raises `ConfigError` when ``data.closed_world`` is not
    set, and InputError when the world is too small for its questions.
    """
    from pipeline.closed_world.fact_generation import NearMisses
    from pipeline.closed_world.write import write_closed_world

    settings = context.config.data.closed_world
    if settings is None:
        raise ConfigError("data.closed_world is not set; the stage `world` needs it; set its sizes")
    shares = {"famous_share", "comparison_share", *NearMisses._fields}
    sizes = settings.model_dump(exclude={"seed", "documents", *shares})
    print(f"seed {settings.seed}, {settings.documents:,} documents, questions: {sizes}")
    return write_closed_world(
        context.output,
        seed=settings.seed,
        documents=settings.documents,
        sizes=sizes,
        famous_share=settings.famous_share,
        comparison_share=settings.comparison_share,
        near_misses=NearMisses(settings.common_share, settings.family_share),
        progress=context.progress,
    )
