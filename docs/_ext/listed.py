"""Methods, models, data, experiments and public names, from the code's own words."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable
from types import GenericAlias
from typing import Any

from marks import plain, table

import commonground
from commonground.algorithms import Algorithm, registry, yardsticks
from commonground.data import available_sources
from commonground.explained import Setting, paragraphs, settings_of
from commonground.models import available_models, model_options_class
from commonground.papers import experiments as known_experiments

_MARKS = re.compile(r"""(\||(?<![^\s\-:/'"<(\[{,])\*(?=[^\s*])(?!.*\S\*(?:$|[\s.,;:!?)\]])))""")  # bars, and stars that
# begin an emphasis without an end

# The order in which somebody meets the names of `commonground`.
TOPICS = {
    "Load": "load_data build_model",
    "Train": "train load_run plan",
    "Compare": "compare plan_comparison",
    "Use": "predict_rows predict_tests adapt keep_clients forget_clients export_model export_adapter load_exported "
    "load_adapter table_inputs",
    "Runs and models": "Run Observer ExportedModel CommonGroundError",
    "Data": "FederatedDataset Source IID Shards Dirichlet LogNormal Labels Features Column",
    "Tasks": "Task Classification MultiLabel Regression AnswerTokens",
    "Algorithms": "Algorithm Client Server Tensors Update",
}


def method_table() -> str:
    """Every method in a line: what travels, what is a client's own, and what it is for."""
    rows = []
    for name, cls in sorted((registry | yardsticks).items()):
        method = cls()
        rows.append((f"[{name}](#{name})", plain(cls.title), *_split(method), _tasks(method)))
    return table(("name", "method", "shared", "personal", "global model", "tasks"), rows)


def _split(method: Algorithm) -> tuple[str, str, str]:
    """What a method shares, what is a client's own, and whether there is one model for all."""
    shared = "every row" if method.pools else _groups(method.shared)
    if method.personal:
        own = _groups(method.personal)
    elif method.personalizes:
        own = "the model, trained once more before a test"
    else:
        own = "a model beside the shared one" if method.has_personal_model else ""
    return shared, own, "yes" if method.has_global_model else "no"


def _groups(names: Iterable[str]) -> str:
    return ", ".join("the whole model" if name == "all" else f"`{name}`" for name in names)


def _tasks(method: Algorithm) -> str:
    if "lora_A" in method.shared:
        return "of a pretrained language model"
    return "classification" if method.needs_classes else "all"


def methods() -> str:
    """Every method with its paper, what it shares, and its settings."""
    parts = []
    for name, cls in sorted((registry | yardsticks).items()):
        parts.append(f"### {name}")
        parts += [_paragraph(part) for part in paragraphs(cls.__doc__)]
        parts.append(f"Source: {plain(cls.source)}.")
        parts.append(_settings(settings_of(cls), "--set "))
    return "\n\n".join(part for part in parts if part)


def _paragraph(text: str) -> str:
    """Lines that belong together as one; a list's items keep theirs."""
    return re.sub(r"\n(?!- )\s*", " ", plain(text))


def models() -> str:
    """The networks that have a name, with their options."""
    parts = []
    for name, text in available_models().items():
        if name.startswith("file"):
            continue
        cls, skipped = model_options_class(name)
        parts += [f"### {name}", plain(text).rstrip(".") + ".", _settings(settings_of(cls, skipped), "--set model.")]
    return "\n\n".join(part for part in parts if part)


def _settings(settings: list[Setting], flag: str) -> str:
    told = []
    for each in settings:
        facts = ([f"default {each.default}"] if each.default else []) + ([each.values] if each.values else [])
        told.append(f"`{flag}{each.name}=…`\n: {plain(each.meaning)} ({plain('; '.join(facts))})")
    return "\n\n".join(told)


def data() -> str:
    """The data sets that have a name."""
    return table(
        ("name", "what", "from"),
        [(f"`{info.name}`", plain(info.description), plain(info.origin)) for info in available_sources()],
    )


def experiments(paper: str) -> str:
    """The experiments of a paper, by name."""
    rows = [
        (f"`{name}`", plain(one.title), plain(one.source))
        for name, one in sorted(known_experiments.items())
        if name.startswith(f"{paper}-")
    ]
    return table(("name", "what", "from"), rows)


def api(module: str) -> str:
    """A module's public names with their docstrings; what `commonground` itself has stands there alone."""
    found = importlib.import_module(module)
    shadowed = callable(getattr(commonground, module.rpartition(".")[2], None))  # cg.adapt is the function
    parts = [f".. {'currentmodule' if shadowed else 'py:module'}:: {module}"]
    if found is commonground:
        return _in_topics(found, parts)
    above = {name: getattr(commonground, name) for name in commonground.__all__}
    elsewhere = []
    for name in found.__all__:
        thing = getattr(found, name)
        if above.get(name) is thing:
            elsewhere.append(name)
        else:
            parts.append(_documented(f"{module}.{name}", thing))
    text = "```{eval-rst}\n" + "\n\n".join(parts) + "\n```"
    if elsewhere:
        links = ", ".join(f"{{py:obj}}`{name} <commonground.{name}>`" for name in elsewhere)
        text = f"Described under [commonground](commonground.md): {links}.\n\n{text}"
    lead = _lead(found)
    return f"{lead}\n\n{text}" if lead else text


def _in_topics(module: Any, parts: list[str]) -> str:
    """The names of `commonground` itself, under headings."""
    others = " ".join(sorted(set(module.__all__) - set(" ".join(TOPICS.values()).split())))
    texts = [_lead(module)]
    for title, names in (TOPICS | ({"Further": others} if others else {})).items():
        told = [_documented(f"{module.__name__}.{name}", getattr(module, name)) for name in names.split()]
        texts.append(f"## {title}\n\n```{{eval-rst}}\n" + "\n\n".join([*parts, *told]) + "\n```")
        parts = [f".. py:currentmodule:: {module.__name__}"]
    return "\n\n".join(texts)


def _lead(module: Any) -> str:
    """What a module says of itself."""
    lead = "\n".join(map(_escaped, (inspect.getdoc(module) or "").strip().splitlines()))
    return f"```{{eval-rst}}\n{lead}\n```" if lead else ""


def _documented(path: str, thing: Any) -> str:
    if inspect.isclass(thing) and not isinstance(thing, GenericAlias):
        foreign = [name for name in dir(thing) if re.fullmatch(r"set_\w+_request", name)]  # scikit-learn's own
        without = f"\n   :exclude-members: {', '.join(foreign)}" if foreign else ""
        bases = "" if thing.__bases__ == (object,) else "\n   :show-inheritance:"
        return f".. autoclass:: {path}\n   :members:{bases}{without}"
    if inspect.isroutine(thing):
        return f".. autofunction:: {path}"
    if isinstance(thing, dict | tuple | list | frozenset):
        told = ", ".join(f"``{one}``" for one in thing)
    else:
        told = f"``{thing}``"
    return f".. py:data:: {path.rpartition('.')[2]}\n\n   {told}"


def readable(app: Any, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Docstrings are plain text with ``code`` and roles: bars and stars in them are mathematics, no marks of RST."""
    lines[:] = [_escaped(line) for line in lines]
    if what == "property" and lines:
        lines[0] = f": {lines[0]}"  # or Napoleon takes what stands before a first colon for its type


def _escaped(line: str) -> str:
    parts = line.split("``")
    return "``".join(part if place % 2 else _MARKS.sub(r"\\\1", part) for place, part in enumerate(parts))
