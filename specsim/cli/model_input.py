"""Models that commands really run, by the name or file that a user gives."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibrate.latency.job import Model

__all__ = ["model_of"]


def model_of(given: str, flag: str) -> Model:
    """A model by what the user gave: files are loaded, names of the catalogue get random weights.

    Raises:
        ScenarioError: neither a file nor such a name.
    """
    from calibrate.latency.job import Model
    from calibrate.models.shapes import config_values
    from scenarios.models import known_model, model, named_like
    from specsim.errors import ScenarioError

    path = Path(given).expanduser()
    if path.suffix == ".gguf":
        from calibrate.models.gguf_file import converted

        path = converted(path)
    if path.exists():
        shape = model(str(path / "config.json" if path.is_dir() else path))
        name = named_like(shape) or (Path(given).name if path.is_dir() else path.parent.name) or shape.name
        has_tokenizer = path.is_dir() and any((path / file).exists() for file in ("tokenizer.json", "tokenizer.model"))
        # the path of the file is of no use to whoever reads the points elsewhere
        return Model(name, path, asdict(replace(shape, name=name, source="its own config.json")), has_tokenizer)
    known = known_model(given)
    if known is None:
        raise ScenarioError(f"{flag} {given}: neither a file nor a name of the catalogue; see specsim model list")
    return Model(known.name, config_values(known), asdict(known))
