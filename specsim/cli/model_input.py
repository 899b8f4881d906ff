"""Models and methods that commands really run, by what a user gives: names, files, options."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from calibrate.latency.job import Model

__all__ = ["method_options", "model_of"]


def model_of(given: str, flag: str, *, to_load: bool = True) -> Model:
    """A model by what the user gave: files are loaded, names of the catalogue get random weights.

    `to_load` False: only its shape is wanted, so that a GGUF file is not made loadable, which reads all its weights.

    Raises:
        ScenarioError: neither a file nor such a name.
    """
    from calibrate.latency.job import Model
    from calibrate.models.shapes import config_values
    from scenarios.models import known_model, model, named_like
    from specsim.errors import ScenarioError

    path = Path(given).expanduser()
    is_gguf = path.suffix == ".gguf"
    if is_gguf:
        from calibrate.models.gguf_file import converted, described

        path = converted(path) if to_load else described(path)
    if path.exists():
        shape = model(str(path / "config.json" if path.is_dir() else path))
        name = named_like(shape) or (Path(given).name if path.is_dir() else path.parent.name) or shape.name
        files = ("tokenizer.json", "tokenizer.model")
        has_tokenizer = is_gguf or (path.is_dir() and any((path / file).exists() for file in files))
        # the path of the file is of no use to whoever reads the points elsewhere
        return Model(name, path, asdict(replace(shape, name=name, source="its own config.json")), has_tokenizer)
    known = known_model(given)
    if known is None:
        raise ScenarioError(f"{flag} {given}: neither a file nor a name of the catalogue; see specsim model list")
    return Model(known.name, config_values(known), asdict(known))


def method_options(texts: tuple[str, ...], methods: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Options of methods from `[METHOD.]NAME=N` each; a method need only be named where there are several.

    Raises:
        ScenarioError: no number, one option twice, or none of these methods.
    """
    from specsim.checks import read_number
    from specsim.errors import ScenarioError

    found: dict[str, dict[str, float]] = {method: {} for method in methods}
    for text in texts:
        name, _, number = text.partition("=")
        method, _, key = name.rpartition(".")
        if not method and len(methods) == 1:
            method = methods[0]
        if method not in found:
            raise ScenarioError(f"--draft-option {text}: say of which method, as in {methods[0]}.{key}={number or 'N'}")
        if key in found[method]:
            raise ScenarioError(f"--draft-option {method}.{key} is given twice")
        try:
            found[method][key] = read_number(number)
        except ValueError:
            raise ScenarioError(f"--draft-option {text}: must be NAME=N with a number") from None
    return found
