"""The model card of an exported adapter: facts of the run, and nothing of its data but what classes are called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from commonground.adapters import Factors
from commonground.algorithms.federated_lora import FederatedLoRA
from commonground.data.text.prompts import alpaca_prompt
from commonground.engine.run import Run
from commonground.export.about import rounding, rounds_of, whose
from commonground.export.reading import Reading, token_inputs
from commonground.models.adapted import AdaptedModel

__all__ = ["model_card"]

_HEADS = {
    "personal": "personal: every client's own",
    "shared": "trained by all clients and averaged",
    "frozen": "as it was drawn, never trained",
}


def model_card(run: Run, reading: Reading, client: int | None, factors: Factors | None, *, untrained: bool) -> str:
    """A README.md.

    Args:
        run: the run.
        reading: its model, and how texts become that model's inputs.
        client: whose model it is; None for the global one.
        factors: what was written, or None for merged weights.
        untrained: whether the task head in the folder is none of the run.
    """
    trained, config, model, options = run.trained, run.config, reading.model, reading.model.options
    summary = run.summary
    local = Path(model.location).is_dir()
    base = Path(model.location).resolve().name if local else model.location
    classes = int(trained.split["classes"])
    layers = "all" if options.layers is None else ", ".join(map(str, options.layers))
    targets = ", ".join(sorted({name.rpartition(".")[2] for name in model.adapted}))
    facts: list[tuple[str, object]] = [
        ("base model", base),
        ("sha256 of the base weights", model.base_sha256),
        ("model", whose(trained, client)),
        ("method", f"{trained.algorithm.title} ({trained.algorithm.source})"),
    ]
    if model.head_names:
        kind = _HEADS[trained.algorithm.head] if isinstance(trained.algorithm, FederatedLoRA) else "by the method"
        here = "; the one in this folder is untrained" if untrained else ""
        facts.append(("task head", f"{kind}{here}"))
        named = ", ".join(trained.split["class_names"][:12]) + (", …" if classes > 12 else "")
        facts += [] if untrained else [(f"{classes} classes, in the order of the outputs", named)]
    facts += [
        ("rank and α", f"{options.rank}, {options.alpha:g}{' (α/√r)' if options.rslora else ''}{_other(factors)}"),
        ("adapted", f"{targets} in the layers: {layers}"),
        ("rounds", rounds_of(run)),
        ("clients", f"{trained.clients}, of which {config.participation:.0%} in each round"),
        ("learning rate", f"{config.lr:g}"),
        *([("seed", config.seed)] if config.dp is None else []),
        ("bytes sent by clients", _bytes(summary, "bytes_up")),
        ("bytes sent by the server", _bytes(summary, "bytes_down")),
        ("number type of the base", str(model.base_dtype).removeprefix("torch.")),
        ("made by", f"commonground {version('commonground')}"),
    ]
    facts += rounding(config)
    if model.auto_class != "CausalLM":
        facts.append(("texts are cut as by", f"tokenizer(texts, truncation=True, max_length={reading.longest})"))
    if factors is not None and factors.recovered:
        facts.append(("factors", f"of rank {factors.rank}, recovered from the sum of products that the method merges"))
    rows = "\n".join(f"| {name} | {str(value).replace('|', '/')} |" for name, value in facts)
    use = _use(reading, classes, factors, untrained)
    return f"{_front(base, local, factors)}\n# {_title(client, factors)}\n\n{use}\n\n| | |\n|---|---|\n{rows}\n"


def _front(base: str, local: bool, factors: Factors | None) -> str:
    lines = [f"library_name: {'transformers' if factors is None else 'peft'}"]
    if not local:
        lines.append(f"base_model: {base}")
    lines += ["tags:", "- lora", "- federated-learning", "- commonground"]
    return "---\n" + "\n".join(lines) + "\n---\n"


def _title(client: int | None, factors: Factors | None) -> str:
    what = "A model" if factors is None else "A LoRA adapter"
    return f"{what} trained by federated learning" + ("" if client is None else ": one client's own")


def _own_labels(model: AdaptedModel) -> int:
    """How many classes the base has when nobody says anything."""
    transformers: Any = importlib.import_module("transformers")
    return int(transformers.AutoConfig.from_pretrained(model.location).num_labels)


def _use(reading: Reading, classes: int, factors: Factors | None, untrained: bool) -> str:
    model = reading.model
    name = f"Auto{'' if factors is None else 'Peft'}ModelFor{model.auto_class}"
    more = ""
    if factors is not None and model.head_names and classes != _own_labels(model):
        more = f", num_labels={classes}, ignore_mismatched_sizes=True"  # the base's own head has other labels
    package = "transformers" if factors is None else "peft"
    begin, load = f"from {package} import {name}\n", f"model = {name}.from_pretrained(folder{more})\n"
    if model.auto_class == "CausalLM":
        text = f"```python\n{begin}\n{load}```\n\n{_asked(reading)}"
    elif reading.tokenizer is None:
        text = f"```python\n{begin}\n{load}```"
    else:
        code = f"{begin}from transformers import AutoTokenizer\n\n{load}{reading.lines('pt')}"
        if factors is not None and model.pad_token is None:  # a merged model's own config says it
            code += "model.config.pad_token_id = tokenizer.pad_token_id  # by which its head knows where a text ends\n"
        code += f"logits = model(**{{name: read[name] for name in {list(token_inputs(model))}}}).logits"
        text = f"```python\n{code}\n```\n\n`texts` is a list of texts; of pairs: `tokenizer(firsts, seconds, …)`."
    if untrained:
        text += (
            "\n\n**The task head in this folder is untrained**: every client has its own. Train it on your own data, "
            "or take a client's own adapter."
        )
    return text


def _asked(reading: Reading) -> str:
    """How a model that writes answers is asked, as in training: another prompt may get answers that are much worse."""
    alone, more = alpaca_prompt("{instruction}"), alpaca_prompt("{instruction}", "{input}")
    return (
        "Training and `commonground predict` put an instruction to it in this form, Alpaca's with a line break at its "
        f"end:\n\n```text\n{alone}```\n\nand with an input:\n\n```text\n{more}```\n\n"
        "```python\nfrom transformers import AutoTokenizer\n\n"
        f"tokenizer = AutoTokenizer.from_pretrained({reading.where})\n"
        f"prompt = {alone!r}.format(instruction=instruction)\n"
        'asked = tokenizer(prompt, return_tensors="pt")\n'
        'ids = asked["input_ids"]\n'
        "if ids[0, -1] == tokenizer.eos_token_id:  # the answer comes before it\n"
        "    ids = ids[:, :-1]\n"
        "written = model.generate(input_ids=ids, attention_mask=ids.new_ones(ids.shape), do_sample=False, "
        "max_new_tokens=64)\n"
        "answer = tokenizer.decode(written[0, ids.shape[1]:], skip_special_tokens=True)\n```"
    )


def _other(factors: Factors | None) -> str:
    """Of factors that were recovered: rank and α are theirs alone, and those of the training are others."""
    if factors is None or not factors.recovered:
        return ""
    return f" in training; {factors.rank}, {factors.alpha:g} of the factors here"


def _bytes(summary: Mapping[str, Any], name: str) -> str:
    """Of a whole run, which a client of a network does not know."""
    if not summary:
        return "the run is not finished"
    return f"{summary[name]:,}" if name in summary else "its server knows"
