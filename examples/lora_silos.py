"""LoRA across three silos: each has texts of its own, and only low-rank factors travel.

python examples/lora_silos.py                      # a tiny random model that is made here: nothing is downloaded
python examples/lora_silos.py /models/roberta-base # a folder with a model and its tokenizer, or a name of the hub
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import commonground as cg

GOOD, BAD = ("fine", "great", "lovely"), ("poor", "dull", "broken")
OTHER = ("the", "seat", "meal", "it", "was", "there")
SILOS = ("cinema", "theatre", "restaurant")


def made_model(folder: Path) -> Path:
    """A two-layer BERT with random weights, and a tokenizer of whole words."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *GOOD, *BAD, *OTHER]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]").save_pretrained(folder)
    size = BertConfig(vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    size.update({"intermediate_size": 64, "initializer_range": 0.2})
    BertForSequenceClassification(size).save_pretrained(folder)
    return folder


def made_texts(file: Path, rows: int = 240) -> Path:
    """Reviews of a cinema, a theatre and a restaurant, each with its label and its silo."""
    rng = np.random.default_rng(0)
    words = ([*rng.choice((BAD, GOOD)[i % 2], 2), *rng.choice(OTHER, 4)] for i in range(rows))
    texts = [" ".join(rng.permutation(each)) for each in words]
    lines = [f"{text}\t{('bad', 'good')[i % 2]}\t{SILOS[i // 2 % 3]}" for i, text in enumerate(texts)]
    file.write_text("\n".join(["sentence\tlabel\tsilo", *lines]))
    return file


def main(folder: Path) -> None:
    """Train factors over the silos, then take one silo's adapter away."""
    model = f"hf:{sys.argv[1] if len(sys.argv) > 1 else made_model(folder / 'model')}"
    data = cg.load_data(made_texts(folder / "texts.tsv"), client_column="silo", tokenizer=model)
    run = cg.train("rolora", data, model=model, rounds=10, lr=0.01, out=folder / "run", model_options={"rank": 4})
    for row in run.clients:
        print(f"{row['name']:>10}: {row['personal_accuracy']:.0%} of {row['test_samples']} test texts")
    print(f"sent by the silos: {run.summary['bytes_up'] / 1e3:.0f} kB")
    cg.export_adapter(run, folder / "adapter", client="cinema")
    print(f"the cinema's adapter, for peft: {sorted(path.name for path in (folder / 'adapter').iterdir())}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
