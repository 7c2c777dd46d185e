"""Answers of a language model: greedy ones, and how those that a file holds are judged."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commonground.cli import main
from commonground.data.text import alpaca_prompt
from commonground.engine import load_run
from commonground.prediction.texts import answer, read_instructions
from tests.adapters.conftest import SET, read_table
from tests.language import WORDS

pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")


def test_a_language_model_answers(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "ask.jsonl").write_text('{"instruction": "w1 w2 w3"}\n{"instruction": "w9", "input": "w4"}\n')
    (tmp_path / "ask.txt").write_text("w1 w2 w3\nw9\n")
    (tmp_path / "ask.csv").write_text("instruction,input\nw1 w2 w3,\nw9,w4\n")
    given = ["predict", str(place / "answers"), "--client", "1", "--max-new-tokens", "5", "--input"]
    assert main([*given, str(tmp_path / "ask.jsonl"), "--out", str(tmp_path / "answers.csv")]) == 0
    header, *rows = read_table((tmp_path / "answers.csv").read_text())
    assert (header, len(rows)) == (["sample", "answer"], 2)
    assert all(len(row[1].split()) <= 5 for row in rows)
    assert read_instructions(tmp_path / "ask.csv") == read_instructions(tmp_path / "ask.jsonl")
    assert main([*given, str(tmp_path / "ask.txt")]) == 0
    assert read_table(capsys.readouterr().out)[1] == rows[0]


@pytest.mark.parametrize("merge", [False, True])
def test_the_card_of_an_export_asks_as_the_run_does(merge: bool, place: Path, tmp_path: Path) -> None:
    import commonground as cg

    model, options = f"hf:{place / 'llama-lm'}", {"max_length": 60, "rank": 2}
    data = cg.load_data(str(place / "answers.json"), clients=4, tokenizer=model, max_length=60)
    cg.train("lora", data, model=model, model_options=options, rounds=1, lr=0.3, out=tmp_path / "run")
    cg.export_adapter(tmp_path / "run", tmp_path / "own", merge=merge)
    first, second = re.findall("```python\n(.*?)```", (tmp_path / "own" / "README.md").read_text(), flags=re.DOTALL)
    (tmp_path / "ask.jsonl").write_text('{"instruction": "w1 w2 w3"}\n', "utf-8")
    out = tmp_path / "answers.csv"
    asked = ["--global", "--input", str(tmp_path / "ask.jsonl"), "--max-new-tokens", "5", "--out", str(out)]
    assert main(["predict", str(tmp_path / "run"), *asked]) == 0
    names: dict[str, Any] = {"folder": str(tmp_path / "own"), "instruction": "w1 w2 w3"}
    exec(first, names)
    exec(second, names)
    assert names["prompt"] == alpaca_prompt("w1 w2 w3")  # with its line break, which this tokenizer does not see
    prompt = len(names["ids"][0])
    assert prompt > 24  # the whole form of an instruction
    written = names["tokenizer"].decode(names["written"][0, prompt : prompt + 5], skip_special_tokens=True)
    assert written == read_table(out.read_text())[1][1] != ""
    assert names["answer"].startswith(written)


def test_answers_are_those_of_transformers_generate(place: Path) -> None:
    from commonground.data.text import load_tokenizer, prompt_tokens
    from commonground.models.generation import greedy_answers

    run = load_run(place / "answers")
    model: Any = run.model(0)
    tokenizer = load_tokenizer(run.config.model)
    asked = [" ".join(WORDS[i : i + length]) for i, length in ((1, 3), (9, 5), (4, 3), (9, 30))]
    prompts = prompt_tokens(asked, tokenizer, 24)
    assert [len(p) for p in prompts] == [3, 5, 3, 24]
    found = greedy_answers(model, prompts, tokenizer.eos_token_id, 7)
    for prompt, got in zip(prompts, found, strict=True):
        ids = torch.tensor([prompt])
        whole = model.base.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=7,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
        cut = whole.index(tokenizer.eos_token_id) if tokenizer.eos_token_id in whole else len(whole)
        assert got == whole[:cut]
    assert len(answer(run, asked[:1], None, 3)) == 1, "nothing is personal, so there is a global model"


def test_answers_that_a_file_holds_are_judged(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By transformers: perplexity and right tokens of outputs and their end, and whole answers that decoding gives."""
    from commonground.data.text import alpaca_prompt, load_tokenizer

    run = load_run(place / "answers")
    model: Any = run.model(None)
    tokenizer = load_tokenizer(run.config.model)
    told = json.loads((place / "answers.json").read_text())[:20]
    nll, right, tokens, whole = 0.0, 0, 0, 0
    for row in told:
        asked = alpaca_prompt(row["instruction"], row.get("input", ""))
        prompt = tokenizer(asked, add_special_tokens=False)["input_ids"]
        ids = tokenizer(row["output"], add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        prompt = prompt[-(run.trained.longest_text - len(ids)) :]  # whose beginning is cut
        with torch.no_grad():
            scores = model.base(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        answer = torch.tensor(ids)
        nll += float(torch.nn.functional.cross_entropy(scores, answer, reduction="sum"))
        hits = scores.argmax(1) == answer
        right, tokens, whole = right + int(hits.sum()), tokens + len(ids), whole + bool(hits.all())
    rows = [*told, {"instruction": "w1 w2"}, {"instruction": "w1 w2", "output": " "}]
    (tmp_path / "told.json").write_text(json.dumps(rows))
    given = ["predict", str(place / "answers"), str(tmp_path / "told.json"), "--max-new-tokens", "2"]
    assert main(given) == 0  # of a model that all have in common nobody has to say whose it is
    said = capsys.readouterr()
    assert len(said.out.splitlines()) == 1 + len(rows)
    found = re.search(r"accuracy (\S+) %, perplexity (\S+), token accuracy (\S+) % over 20 answers", said.err)
    assert found
    wanted = (100 * whole / 20, float(np.exp(nll / tokens)), 100 * right / tokens)
    assert [float(each) for each in found.groups()] == pytest.approx(wanted, rel=2e-3, abs=0.06)
    for client in ("1", "3"):
        assert main([*given, "--client", client]) == 0
        assert capsys.readouterr() == said
    (tmp_path / "ask.json").write_text(json.dumps([{"instruction": "w1 w2"}]))
    assert main(["predict", str(place / "answers"), str(tmp_path / "ask.json"), "--max-new-tokens", "2"]) == 0
    assert "perplexity" not in capsys.readouterr().err
    (tmp_path / "long.json").write_text(json.dumps([*told, {"instruction": "w1", "output": "w1 " * 200}]))
    assert main(["predict", str(place / "answers"), str(tmp_path / "long.json"), "--max-new-tokens", "2"]) == 0
    said = capsys.readouterr()
    assert re.search(
        r" over 21 answers; \d+ fill with their prompts the \d+ tokens that are read, and may be cut", said.err
    )


def test_answers_are_judged_by_the_model_that_is_asked(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a method whose clients have their own, somebody has to say whose."""
    data = ["--data", str(place / "answers.json"), "--model", f"hf:{place / 'llama-lm'}", "--clients", "2", *SET]
    data += ["--rounds", "1", "--lr", "0.3", "--quiet"]
    assert main(["train", "local", *data, "--out", str(tmp_path / "run")]) == 0
    asked = ["predict", str(tmp_path / "run"), str(place / "answers.json"), "--max-new-tokens", "1"]
    assert main(asked) == 2
    assert "give --client ID" in capsys.readouterr().err
    said = []
    for client in ("0", "1"):
        assert main([*asked, "--client", client]) == 0
        said.append(capsys.readouterr().err)
    assert said[0] != said[1]
    assert all("perplexity" in each for each in said)
