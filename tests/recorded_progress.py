"""A progress that records what it is told."""

from pipeline.core.progress import Progress


class RecordedProgress(Progress):
    """``starts`` are (total, unit, done) of every start; ``done`` counts since the last of them."""

    def __init__(self) -> None:
        self.starts: list[tuple[int | None, str, int]] = []
        self.done = 0
        self.values: dict[str, float] = {}

    def start(self, total: int | None, unit: str, done: int = 0) -> None:
        self.starts.append((total, unit, done))
        self.done = done

    def advance(self, n: int = 1) -> None:
        self.done += n

    def skip(self, n: int) -> None:
        self.done += n

    def show(self, **values: float) -> None:
        self.values |= values
