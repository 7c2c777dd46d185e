"""The command ``predict``: what a finished run's models say of new samples."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonground.cli.parameters import kinds_option, trust_code
from commonground.errors import ConfigError, DataError
from commonground.existing import check_run
from commonground.spreadsheet import as_csv
from commonground.terminal import say

if TYPE_CHECKING:
    from commonground.engine.run import Run
    from commonground.prediction.tables import TableAnswers, Whose

__all__ = ["predict"]


@click.command(
    short_help="The clients' models on new inputs.",
    epilog="Example: commonground predict runs/renewed new.csv --out predictions.csv",
)
@click.argument("run_dir", type=click.Path(path_type=Path, readable=False))
@click.argument("table", required=False, type=click.Path(path_type=Path))
@click.option(
    "--client",
    help="the client's name or number  [default: each row's own in a table, or the only one; of a method that "
    "has one model for all, that]",
)
@click.option("--global", "use_global", is_flag=True, help="use the global model instead")
@click.option(
    "--input",
    "input_file",
    type=click.Path(path_type=Path),
    help="the file, in place of TABLE: .npy or .csv of samples, a picture or a folder of them; for texts .tsv, .csv, "
    ".jsonl or .txt",
)
@click.option(
    "--tested", is_flag=True, help="the samples that the run was tested on, in place of TABLE, beside what is right"
)
@click.option("--separator", help="between a table's cells  [default: found]")
@click.option("--encoding", help="of a table's file  [default: found]")
@kinds_option
@click.option(
    "--max-new-tokens", type=click.IntRange(1), help="most tokens of a language model's answer  [default: 64]"
)
@click.option("--out", type=click.Path(path_type=Path), help="write the CSV here  [default: standard output]")
@trust_code
def predict(
    run_dir: Path,
    table: Path | None,
    client: str | None,
    use_global: bool,
    input_file: Path | None,
    tested: bool,
    separator: str | None,
    encoding: str | None,
    kinds: str | None,
    max_new_tokens: int | None,
    out: Path | None,
    trust_code: bool,
) -> None:
    """Classify new samples with the clients' own models from RUN_DIR, predict their numbers or labels, or let a
    language model answer.

    A run on a table takes a TABLE with the same columns, by name and in any order; others are ignored. Each row is
    answered by its own client's model unless --client or --global says whose; where the target is there, the metric is
    printed too. Columns that are missing and cells of another kind are refused by name.

    Other samples are stored as the training data is: one row of numbers per sample (.csv; a header is skipped), or an
    array [samples, …] (.npy; images as height × width × channels). Pictures are a file or a folder of them, or lie in
    folders of clients and classes as in training, by which each is answered and judged. Prints a line per sample: its
    class and the probability; the predicted numbers; or its labels and the probability of each.

    Texts are a column of a table with a header (.tsv, .csv), a field of the objects in a .jsonl file, or the lines of a
    .txt file; pairs are two columns, named as in GLUE. In a run on your own table of texts each row is answered by its
    own client's model, as above. A language model takes instructions (.json, .jsonl, a table with a column instruction,
    .txt) and answers greedily; where a .json or .jsonl file holds outputs, it prints how many are given word for word.

    With --tested the data are read as in training, and each sample that the run was tested on is answered beside what
    is right: which answers were wrong (not of a language model that writes answers).
    """
    check_run(run_dir)
    file = table or input_file
    if tested:
        _refuse_beside_tested(file, separator, encoding, kinds, max_new_tokens)
    elif file is None or (table is not None and input_file is not None):
        raise ConfigError(
            "name one file with the samples, or a folder of pictures, as TABLE or with --input; or take those that the "
            "run was tested on (--tested)"
        )
    if client is not None and use_global:
        raise ConfigError("give either --client ID or --global")
    from commonground.engine.run import load_run
    from commonground.engine.state.files import write_atomically
    from commonground.prediction.tables import Whose
    from commonground.prediction.tested import answers_to_tests

    run = load_run(run_dir, trust_code=trust_code)
    number = None if client is None else run.trained.known.number(client)
    if kinds is not None and run.trained.schema is None:
        raise ConfigError(f"--kinds says how a table's columns are written, and the run in '{run_dir}' has none")
    if run.unfinished:
        say(run.unfinished)
    if run.trained.remark and not use_global:
        say(run.trained.remark)
    whose = Whose(number, use_global)
    if file is None:
        answers = answers_to_tests(run, whose)
    else:
        rowwise = None if max_new_tokens is not None else _row_by_row(run, file, whose, separator, encoding, kinds)
        answers = rowwise or _by_one_model(run, file, whose, max_new_tokens, separator, encoding)
        if rowwise is not None and answers.metric and _is_own(run, file):
            say("the run was trained on rows of this file; its own figures are of test rows alone (predict --tested)")
    for line in answers.metric.splitlines():
        say(line)
    # What a language model writes is of any length and many lines; a terminal is shown neither.
    whole = run.trained.task.generative and not (out is None and sys.stdout.isatty())
    text = as_csv([answers.header, *answers.rows], whole=whole)
    if out is not None:
        write_atomically(out, text)
    else:
        print(text, end="")


def _refuse_beside_tested(file: Path | None, *read: object) -> None:
    """With ``--tested`` the data are read as in training."""
    if file is not None:
        raise ConfigError(f"--tested takes the run's own data, and '{file}' is another file; give one of the two")
    if any(one is not None for one in read):
        raise ConfigError(
            "--tested reads the run's own data as in training; --separator, --encoding, --kinds and --max-new-tokens "
            "are for a file"
        )


def _row_by_row(
    run: Run, file: Path, whose: Whose, separator: str | None, encoding: str | None, kinds: str | None
) -> TableAnswers | None:
    """What is said of a table or of pictures, where each row may be a client's of its own; None of other samples."""
    from commonground.data.tables.read import is_table
    from commonground.data.tables.textfile import check_unsaid
    from commonground.engine.named_columns import schema_of_texts
    from commonground.prediction.pictures import holds_pictures, predict_pictures
    from commonground.prediction.tables import predict_table
    from commonground.prediction.text_tables import predict_text_table

    if run.trained.schema is not None:
        return predict_table(run.trained, file, whose, say, separator=separator, encoding=encoding, kinds=kinds)
    texts = schema_of_texts(run.trained)
    if texts is not None and is_table(str(file)):
        return predict_text_table(run, file, texts, whose, say, separator=separator, encoding=encoding)
    if not run.trained.reads_text and holds_pictures(file):
        check_unsaid(file, separator, encoding)
        return predict_pictures(run, file, whose, say)
    return None


def _by_one_model(
    run: Run, file: Path, whose: Whose, max_new_tokens: int | None, separator: str | None, encoding: str | None
) -> TableAnswers:
    """What one model says of samples that are nobody's."""
    from commonground.prediction.predictors import predictor_of
    from commonground.prediction.tables import TableAnswers

    predictor = predictor_of(run, max_new_tokens, separator=separator, encoding=encoding)
    number = whose.client
    if not whose.said:
        if not file.exists():  # which whoever mistyped it is to hear before anything about clients
            raise DataError(f"the input file '{file}' does not exist")
        number = None if run.trained.one_for_all else run.trained.only_client()
    header, rows = predictor.table(file, number, say)
    return TableAnswers(["sample", *header], [[str(i), *row] for i, row in enumerate(rows)], "")


def _is_own(run: Run, file: Path) -> bool:
    """Whether a file is the one that the run was trained on, as far as its name says."""
    own = Path(run.config.data).expanduser()
    return own.exists() and own.resolve() == file.resolve()
