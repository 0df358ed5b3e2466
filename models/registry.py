"""Finds models: by registry name, as hf:FOLDER_OR_NAME, or as package.module:function."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from . import bert, gnmt, gpt, inception, llama, lstm, mixtral, mlp, resnet, vgg
from .exported import Folded, folded, is_module
from .hugging import PREFIX, HuggingFault, hugging
from .lanes import NoParallelForm
from .loss import cross_entropy
from .once import Built, PartOf, build, keep, module_of, note_outline, outline
from .protocol import LayeredModel, LayerSpec, Tie
from .seeding import seeded
from .whole import left_out, modules_made

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

_PRESETS: dict[str, Callable[[], LayeredModel]] = {
    **bert.PRESETS, **gnmt.PRESETS, **gpt.PRESETS, **inception.PRESETS, **llama.PRESETS, **lstm.PRESETS,
    **mixtral.PRESETS, **mlp.PRESETS, **resnet.PRESETS, **vgg.PRESETS,
}  # fmt: skip


class UnknownModel(ValueError):
    """A model name that leads nowhere; the message names it, says why and lists the registered ones."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"model {name!r}: {why}; registered models: {', '.join(names())}")


def names() -> tuple[str, ...]:
    """The registered names, sorted."""
    return tuple(sorted(_PRESETS))


def resolve(name: str, seed: int = 0) -> LayeredModel:
    """The model of that name.

    A registry name, "hf:FOLDER_OR_NAME" (see `hugging`), or "package.module:function", imported with the working
    directory on the path. The function takes no arguments and returns a `LayeredModel`, or a list of modules or (name,
    module) pairs, each Tensor -> Tensor, or behind these names of what it takes and of what it returns (see
    `LayerSpec`), or a module with example inputs (see `exported`); then its attributes `loss`, `data` and `counted`
    count if set (default: cross entropy of logits, no data, and samples), and so does `parallel_plan`: what torch's
    `parallelize_module` would take for a module whose children are the layers, by name. A parameter that is the same
    object in several of the layers is tied. The
    function is called when it is first resolved, under `seed`; what it makes then gives the shapes of all layers, and
    within `once.kept` their values too. Where layers are parts of a module, every parameter and buffer of it must be in
    some layer.

    Raises:
        UnknownModel: not registered, cannot be imported, not what a model function returns, or a part of it; or a
            parallel plan that names what there is not.
    """
    if name in _PRESETS:
        return _preset(name)
    if ":" not in name:
        raise UnknownModel(name, "not registered, and not package.module:function")
    factory = _factory(name)
    made = outline(factory)
    whole = folded(factory)
    if made is None and outline(whole) is not None:
        return _exported(name, whole)
    if made is None:
        with modules_made() as wholes:
            built = _made(name, factory, seed)
        made = built.made
        if isinstance(made, LayeredModel):
            return made
        if is_module(made):
            return _exported(name, whole, seed, built)
        _as_layers(name, factory, made)
        missing = left_out(wholes, list(map(module_of, made)))
        if missing is not None:
            raise UnknownModel(name, f"its layers leave out what belongs to the same module: {missing}")
        note_outline(factory, made)
    loss = getattr(factory, "loss", cross_entropy)
    layers = _planned(name, _as_layers(name, factory, made), made, getattr(factory, "parallel_plan", None))
    try:
        return LayeredModel(
            name, layers, loss, getattr(factory, "data", None), _ties(layers, made), counted=_counted(factory)
        )
    except ValueError as error:
        raise UnknownModel(name, str(error)) from None


def _exported(name: str, whole: Folded, seed: int = 0, made: Built | None = None) -> LayeredModel:
    """A module with example inputs, as layers. Raises UnknownModel: it cannot be exported."""
    if made is not None:
        try:
            folds = whole.of(made, seed)
        except ValueError as error:
            raise UnknownModel(name, str(error)) from None
        keep(whole, seed, folds)
        note_outline(whole, folds.made)
    known = outline(whole)
    if known is None:
        raise UnknownModel(name, "its layers cannot be copied")
    layers = [
        LayerSpec(entry.name, PartOf(whole, index), entry.block, None, entry.inputs, entry.outputs)
        for index, entry in enumerate(known)
    ]
    loss = getattr(whole.factory, "loss", None) or whole.loss() or cross_entropy
    data, ties = getattr(whole.factory, "data", None), _ties(layers, known)
    return LayeredModel(name, tuple(layers), loss, data, ties, counted=_counted(whole.factory))


def _counted(factory: Any) -> Any:
    return getattr(factory, "counted", None)


@cache
def _preset(name: str) -> LayeredModel:
    return _PRESETS[name]()


def _factory(name: str) -> Callable[[], Any]:
    if not name.startswith(PREFIX):
        return _import(name)
    try:
        return hugging(name)
    except HuggingFault as error:
        raise UnknownModel(name, str(error)) from None


def _import(name: str) -> Callable[[], Any]:
    module_name, _, attribute = name.partition(":")
    try:
        _make_working_directory_importable()
        with seeded("module", module_name):
            found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownModel(name, str(error)) from error
    if not callable(found):
        raise UnknownModel(name, f"{attribute} is a {type(found).__name__}, not a function")
    return found  # type: ignore[no-any-return]


def _make_working_directory_importable() -> None:
    """For good: what is imported later, here and in processes that this one starts, is looked for there too."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)


def _made(name: str, factory: Callable[[], Any], seed: int) -> Built:
    """What the function returns; what it raises is the user's to mend, so the message says where."""
    try:
        built = build(factory, seed)
        if isinstance(built.made, LayeredModel) and built.drew:  # that is the model's, whatever the run's seed
            with seeded("model", name):
                return Built(factory(), None, drew=True)
    except HuggingFault as error:
        raise UnknownModel(name, str(error)) from None
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise UnknownModel(name, f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})") from error
    keep(factory, seed, built)
    return built


def _as_layers(name: str, factory: Callable[[], Any], made: object) -> tuple[LayerSpec, ...]:
    if not isinstance(made, (list, tuple, nn.Sequential)):
        raise UnknownModel(name, f"returned {type(made).__name__}, not a LayeredModel or a list of modules")
    if not len(made):
        raise UnknownModel(name, f"returned a {type(made).__name__} without layers")
    layers = []
    for index, entry in enumerate(made):
        layer_name, module, *wires = entry if isinstance(entry, (list, tuple)) else (f"layer{index}", entry)
        if not isinstance(module, nn.Module):
            raise UnknownModel(name, f"entry {index} is a {type(module).__name__}, not a module")
        inputs, outputs = _wires(name, index, wires)
        layers.append(LayerSpec(str(layer_name), PartOf(factory, index), inputs=inputs, outputs=outputs))
    return tuple(layers)


def _wires(name: str, index: int, given: Sequence[object]) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """What an entry says behind name and module: names of what its layer takes, and of what it returns."""
    found = [(x,) if isinstance(x, str) else tuple(x) if isinstance(x, (list, tuple)) else () for x in given]
    if len(given) > 2 or not all(names and all(isinstance(n, str) for n in names) for names in found):
        raise UnknownModel(name, f"entry {index} is not a name, a module, and names of what it takes and returns")
    return found[0] if found else None, found[1] if len(found) > 1 else ()


def _ties(layers: Sequence[LayerSpec], made: Sequence[Any]) -> tuple[Tie, ...]:
    """The parameters that are one object in several layers."""
    members: dict[int, list[tuple[str, str]]] = {}
    for spec, entry in zip(layers, made, strict=True):
        for name, parameter in module_of(entry).named_parameters():
            members.setdefault(id(parameter), []).append((spec.name, name))
    return tuple(Tie(tuple(found)) for found in members.values() if len(found) > 1)


def _planned(
    name: str, layers: Sequence[LayerSpec], made: Sequence[Any], plan: Mapping[str, ParallelStyle] | None
) -> tuple[LayerSpec, ...]:
    """The layers, each with its part of the model's parallel plan. Raises UnknownModel: a path that no module has."""
    if plan is None:
        return tuple(layers)
    from .styles import divided_plan  # takes a second to import

    try:
        parts = divided_plan(plan, {spec.name: module_of(entry) for spec, entry in zip(layers, made, strict=True)})
    except NoParallelForm as error:
        raise UnknownModel(name, f"parallel_plan: {error}") from None
    return tuple(replace(spec, parallel_plan=parts[spec.name]) for spec in layers)
