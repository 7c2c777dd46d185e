"""The README.md of an exported model: what it is, and a few lines that use it."""

from __future__ import annotations

from importlib.metadata import version

from commonground.data.tables.schema import TableSchema
from commonground.engine.run import Run
from commonground.export.about import graph_dtype, rounding, rounds_of, whose
from commonground.export.reading import Reading, token_inputs
from commonground.registration import is_ours
from commonground.user_code import is_code

__all__ = ["card"]


def card(run: Run, client: int | None, format: str, schema: TableSchema | None, reading: Reading | None = None) -> str:
    """A README.md: facts of the run, and nothing of its data.

    Args:
        run: the run.
        client: whose model it is; None for the global one.
        format: ``safetensors``, ``onnx`` or ``torch``.
        schema: of a table, as it travels.
        reading: of texts, how they become inputs.
    """
    trained = run.trained
    outputs = ", ".join(trained.task.columns(trained.split["class_names"])[:12])
    facts = [
        ("model", f"{run.config.model}, {whose(trained, client)}"),
        ("method", f"{trained.algorithm.title} ({trained.algorithm.source})"),
        ("task", trained.task.name),
        ("outputs", f"{trained.split['classes']}: {outputs}"),
        ("rounds", rounds_of(run)),
        ("made by", f"commonground {version('commonground')}"),
    ]
    facts += rounding(run.config)
    rows = "\n".join(f"| {name} | {str(value).replace('|', '/')} |" for name, value in facts)
    more = ["config.json: how samples and outputs are read."]
    if schema is not None:
        more.append("schema.json: the table's columns by name, and how their cells become the model's inputs.")
    use = _use(run, client, format, schema) if reading is None else _use_of_texts(reading, format)
    return f"# A model trained by federated learning\n\n{use}\n\n{' '.join(more)}\n\n| | |\n|---|---|\n{rows}\n"


def _use_of_texts(reading: Reading, format: str) -> str:
    """Tokens are told apart by nothing but their places, and tokenizers give them in other ones."""
    names = list(token_inputs(reading.model))
    begin = f"from transformers import AutoTokenizer\n\n{reading.lines('np' if format == 'onnx' else 'pt')}"
    if format == "onnx":
        code = (
            f"import onnxruntime\n{begin}"
            'session = onnxruntime.InferenceSession(f"{folder}/model.onnx")\n'
            f"(prediction,) = session.run(None, {{name: read[name] for name in {names}}})"
        )
    else:
        code = (
            f"import torch\n{begin}"
            'model = torch.export.load(f"{folder}/model.pt2").module()\n'
            f"prediction = model(*(read[name] for name in {names}))"
        )
    return (
        f"```python\n{code}\n```\n\nIt takes tokens (int64 [n, length]) in the order {', '.join(names)}, of a list of "
        f"texts; of pairs: `tokenizer(firsts, seconds, …)`. Texts are cut to {reading.longest} tokens, as in the run."
    )


def _use(run: Run, client: int | None, format: str, schema: TableSchema | None) -> str:
    shape = ", ".join(map(str, run.trained.format.sample_shape))
    kind = "as they are stored" if format == "safetensors" else f"as {graph_dtype(run.trained)}"
    inputs = f"samples [n, {shape}] {kind}, not scaled" if shape else "the arrays by name, not scaled"
    if schema is not None and format == "safetensors":
        inputs = "a pandas DataFrame with the table's columns"
    elif schema is not None:
        inputs = f"the {len(schema.inputs)} inputs that schema.json makes of the table's columns (a pandas DataFrame)"
    begin = "import commonground as cg\n"
    own = ""
    if format == "safetensors":
        arguments, own = _own_code(run, client)
        code = f"{begin}\nmodel = cg.load_exported({arguments})\nprediction = model.predict(samples)"
    elif format == "onnx":
        cast = f'.astype("{run.config.dtype}")' if run.config.dtype != "float32" else ""
        given = "inputs" if schema is None else f'{{"samples": cg.table_inputs(folder, rows){cast}}}'
        which = "  # inputs: a dict by the names of session.get_inputs()" if schema is None else ""
        code = (
            f"{'' if schema is None else begin}import onnxruntime\n\n"
            'session = onnxruntime.InferenceSession(f"{folder}/model.onnx")\n'
            f"(prediction,) = session.run(None, {given}){which}"
        )
    else:
        cast = f".to(torch.{run.config.dtype})" if run.config.dtype != "float32" else ""
        given = "*inputs" if schema is None else f"torch.from_numpy(cg.table_inputs(folder, rows)){cast}"
        code = (
            f"{'' if schema is None else begin}import torch\n\n"
            'model = torch.export.load(f"{folder}/model.pt2").module()\n'
            f"prediction = model({given}){'  # tensors, one for each input' if schema is None else ''}"
        )
    return f"```python\n{code}\n```\n\nIt takes {inputs}, any number of rows.{own}"


def _own_code(run: Run, client: int | None) -> tuple[str, str]:
    """Arguments of :func:`~commonground.export.load_exported`, and a sentence where it needs code of the user's own."""
    trained, arguments, needed = run.trained, ["folder"], list[str]()
    # The network of a client that was added later is that of a plain method.
    method = run.config.algorithm if client is None or client < trained.clients else ""
    files = dict.fromkeys(text.rpartition(":")[0] for text in (str(run.config.model), method) if is_code(text))
    if files:
        arguments.append("trust_code=True")
        needed.append(f"the run's own code, {' and '.join(files)}, at that path from where it is called")
    if trained.given:
        arguments.append("model=network")
        needed.append("`network`, a module of the run's architecture, whose weights do not matter")
    if method and not is_code(method) and not is_ours(type(trained.algorithm)):
        arguments.append("algorithm=method")
        needed.append("`method`, the run's own algorithm")
    return ", ".join(arguments), f" It is loaded with {'; '.join(needed)}." if needed else ""
