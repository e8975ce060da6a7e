"""Copies the files of `SHIPPED` into the wheel, below ``pipeline/shipped/``.

Everything else about the package is in ``pyproject.toml``. The files stay where the repository
keeps them (``configs/``, ``data/``); `pipeline.core.shipped` finds them in both places.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SHIPPED = ("configs/**/*.yaml", "data/tiny_reader/*", "data/demo/**/*")


class BuildWithShippedFiles(build_py):
    """Builds the packages and adds the shipped files; an editable install reads the repository."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for source, target in self._shipped().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(str(source), target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs: list[str] = super().get_outputs(include_bytecode)
        return outputs if self.editable_mode else [*outputs, *self._shipped().values()]

    def _shipped(self) -> dict[Path, str]:
        """Targets below the build directory by source file."""
        root = Path(self.build_lib) / "pipeline" / "shipped"
        files = [file for pattern in SHIPPED for file in ROOT.glob(pattern) if file.is_file()]
        return {file: str(root / file.relative_to(ROOT)) for file in sorted(files)}


setup(cmdclass={"build_py": BuildWithShippedFiles})
