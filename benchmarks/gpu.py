"""What a GPU gains: rounds on it against the same machine's CPU, a plain training loop, and peft.

    python -m benchmarks.gpu [--device cuda] [--only cifar,resnet,linear,lora] [--rounds 3] [--data-dir DIR]
        [--batch 128] [--small] [--out FILE.json]

``cifar``: FedRep's round against two cores. ``resnet``: ResNet-18 of eight clients against one plain loop over all
their images. ``linear``: a thousand small models against two threads. ``lora``: BERT-base for fifty clients against
peft, one client at a time. Seconds are medians of rounds after one that warms up, with the device waited for; a figure
is printed and written as soon as it is known. ``--small`` tries it all without a GPU: ``--device cpu --small``.

The device's machine may lack the CIFAR-10 files: random images of the same size are the same arithmetic.
"""

from __future__ import annotations

import argparse
import copy
import gc
import os
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import figures
from benchmarks.data import cifar, linear, random_texts
from commonground import FederatedDataset
from commonground.devices import resolve_device
from commonground.engine.backends.base import Engine
from commonground.engine.backends.factory import make_engine
from commonground.engine.loop import sample_clients
from commonground.engine.setup import Setup
from commonground.engine.training import prepared
from commonground.precision import autocast, computing_with

RANK, ALPHA = 4, 16.0  # of LoRA; α is the library's own
TEXTS, TEXT_BATCH = 8, 4  # of a client
SLOW_ROUNDS = 1  # timed, of those on the CPU that take long: the device waits meanwhile


@dataclass
class Record:
    """What is measured, how, and what is known so far.

    Attributes:
        device: that the gains are of.
        rounds: timed ones.
        batch: images of a client in a step of ``resnet``.
        small: sizes to try it with.
        data_dir: with CIFAR-10's files, if they are there.
        out: file of the figures.
        known: the figures.
    """

    device: torch.device
    rounds: int
    batch: int
    small: bool
    data_dir: str | None
    out: Path | None
    known: dict[str, Any] = field(default_factory=dict)

    @property
    def precisions(self) -> list[str]:
        """Those of the device."""
        return ["fp32", *(["tf32"] if self.device.type == "cuda" else []), "bf16"]

    def begin(self, name: str, **about: Any) -> None:
        """A measurement, and what it is of."""
        self.known[name] = about | {"rows": []}
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in about.items())}", flush=True)

    def add(self, name: str, **row: Any) -> None:
        """One more row: a line, and the file anew."""
        row = {key: float(f"{value:.4g}") if isinstance(value, float) else value for key, value in row.items()}
        self.known[name]["rows"].append(row)
        print(f"{name}: {', '.join(f'{key} {value}' for key, value in row.items())}", flush=True)
        self.write()

    def write(self) -> None:
        """The file, with what is known."""
        figures.write(self.known, self.out)


def now(device: torch.device) -> float:
    """The clock when the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@contextmanager
def engine_of(setup: Setup) -> Iterator[Engine]:
    """The setup's engine, in its precision and number of threads."""
    with computing_with(setup.config.precision, setup.config.threads):
        engine = make_engine(setup.config.engine, setup)
        try:
            yield engine
        finally:
            engine.close()


def freed(device: torch.device) -> None:
    """Give back what nobody holds any more, so that the next has the whole memory."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def time_rounds(setup: Setup, rounds: int, warm: int | None = None) -> dict[str, float]:
    """Median seconds of a round, and the device's peak memory.

    Args:
        setup: with its engine.
        rounds: timed ones.
        warm: clients of the round before them, where all would take long.
    """
    device, seconds = setup.device, []
    freed(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with engine_of(setup) as engine:
        shared = dict(setup.initial_shared)
        for round in range(1, rounds + 2):
            clients = sample_clients(setup.config, setup.data.clients, round)
            began = now(device)
            engine.commit(round, engine.train(round, clients[:warm] if round == 1 else clients, shared))
            seconds.append(now(device) - began)
    found = {"seconds": statistics.median(seconds[1:])}
    if device.type == "cuda":
        found["peak_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    return found


def time_calls(call: Callable[[], object], device: torch.device, times: int, warm: Callable[[], object]) -> float:
    """Median seconds of a call, after another that warms up."""
    warm()
    seconds = []
    for _ in range(times):
        began = now(device)
        call()
        seconds.append(now(device) - began)
    return statistics.median(seconds)


# -- the CPU beside it --------------------------------------------------------------------------------------------


def on_two_cores(time_it: Callable[[], float]) -> float:
    """What is measured in a fresh process with two cores: one that has used a GPU cannot fork and train."""
    with ProcessPoolExecutor(1, get_context("spawn"), _keep_to, (two_cores(),)) as pool:
        return pool.submit(time_it).result()


def _keep_to(cores: Sequence[int]) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def two_cores() -> list[int]:
    """Two of the cores that this process may use, not two threads of one, as far as the system tells."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    mine, found = sorted(os.sched_getaffinity(0)), dict[str, int]()
    for core in mine:
        siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        found.setdefault(siblings.read_text("ascii") if siblings.is_file() else str(core), core)
    return (list(found.values()) if len(found) > 1 else mine)[:2]


# -- cifar --------------------------------------------------------------------------------------------------------


def cifar_setup(device: str, precision: str, engine: str, small: bool, data_dir: str | None, rounds: int) -> Setup:
    """FedRep's Table 1: CNN on CIFAR-10 (100, 2), a tenth of the clients in a round."""
    sizes: dict[str, Any] = {"participation": 0.02, "train_samples": 40} if small else {"participation": 0.1}
    return prepared(
        "fedrep", cifar(100, data_dir), model="cnn", device=device, precision=precision, engine=engine,
        workers=2 if engine == "processes" else None, rounds=rounds + 1, **sizes,
    )  # fmt: skip


def _cifar_on_cpu(small: bool, data_dir: str | None, rounds: int) -> float:
    return time_rounds(cifar_setup("cpu", "fp32", "processes", small, data_dir, rounds), rounds)["seconds"]


def measure_cifar(record: Record) -> None:
    """A round of FedRep on the device, its steps replayed as graphs and not, and on two cores."""
    record.begin("cifar", what="FedRep, CNN on CIFAR-10 (100, 2), a round's clients" + _small(record))
    few = min(SLOW_ROUNDS, record.rounds)
    cpu = on_two_cores(partial(_cifar_on_cpu, record.small, record.data_dir, few))
    record.add("cifar", device="two cores", engine="processes", precision="fp32", rounds=few, seconds=cpu)
    for precision in record.precisions:
        setup = cifar_setup(str(record.device), precision, "batched", record.small, record.data_dir, record.rounds)
        about = _where(setup) | {"data": setup.data.name}
        for steps, how in (("replayed", nullcontext()), ("one by one", no_graphs())):
            if steps == "replayed" and record.device.type != "cuda":
                continue
            with how:
                found = time_rounds(setup, record.rounds)
            record.add("cifar", **about, steps=steps, **found, cpu_over_device=cpu / found["seconds"])


def no_graphs() -> AbstractContextManager[object]:
    """While open, engines that are made start every kernel of a step from Python."""
    return patch("commonground.engine.clients.stacked.step_graphs", lambda setup: None)


# -- resnet -------------------------------------------------------------------------------------------------------


def measure_resnet(record: Record) -> None:
    """Local SGD of several clients against one loop over the images of all."""
    clients, steps, batch = (2, 2, 8) if record.small else (8, 8, record.batch)
    data = cifar(clients, record.data_dir)
    record.begin(
        "resnet", what="Local SGD, ResNet-18 on CIFAR-10", clients=clients, steps=steps, batch=batch, data=data.name
    )
    images = clients * batch * steps
    for precision in record.precisions:
        plain = dict[torch.memory_format, float]()
        for engine in ("batched", "serial"):
            setup = prepared(
                "local-sgd", data, model="resnet18", options={"steps": steps}, batch_size=batch,
                device=str(record.device), precision=precision, engine=engine, rounds=record.rounds + 1,
            )  # fmt: skip
            if not plain:
                for layout in (torch.channels_last, torch.contiguous_format):  # the first is the library's
                    seconds = time_plain(setup, steps, batch, layout, record.rounds)
                    plain[layout] = images / seconds
                    record.add("resnet", engine=f"plain loop, {str(layout).removeprefix('torch.')}",
                               precision=precision, seconds=seconds, images_per_second=plain[layout])  # fmt: skip
            found = time_rounds(setup, record.rounds)
            rate = images / found["seconds"]
            record.add("resnet", **_where(setup), **found, images_per_second=rate,
                       share_of_plain=rate / plain[torch.channels_last],
                       share_of_faster_plain=rate / max(plain.values()))  # fmt: skip
            del setup


def time_plain(setup: Setup, steps: int, batch: int, layout: torch.memory_format, times: int) -> float:
    """Seconds of as many steps on the batches of all clients joined, which lie on the device already."""
    data, device = setup.data, setup.device
    index = np.concatenate([data.train_indices(client)[:batch] for client in range(data.clients)])
    rows, y = setup.inputs.rows("train", index)
    x = setup.inputs.arrange(rows)
    assert isinstance(x, dict)
    images = x["x"].contiguous(memory_format=layout)
    module = copy.deepcopy(setup.model).to(memory_format=layout).train()  # type: ignore[call-overload]  # its types know no format alone
    trained = [parameter.requires_grad_(True) for parameter in module.parameters()]
    config = setup.config
    assert config.lr is not None

    def loop() -> None:
        optimizer = torch.optim.SGD(trained, lr=config.lr or 0.0, momentum=config.momentum)
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with setup.autocast():
                out = module(images)
            nn.functional.cross_entropy(out.float(), y).backward()
            optimizer.step()

    with computing_with(config.precision, config.threads):
        return time_calls(loop, device, times, loop)


# -- linear -------------------------------------------------------------------------------------------------------


def linear_setup(data: FederatedDataset, epochs: int, device: str, rounds: int) -> Setup:
    """FedAvg of linear models in d = 20."""
    return prepared(
        "fedavg", data, model="linear", lr=0.01, local_epochs=epochs, device=device, engine="batched",
        threads=2, rounds=rounds + 1,
    )  # fmt: skip


def _linear_on_cpu(clients: int, epochs: int, rounds: int) -> float:
    return time_rounds(linear_setup(linear(clients), epochs, "cpu", rounds), rounds)["seconds"]


def measure_linear(record: Record) -> None:
    """Small models of many clients, with little and with more work in a round."""
    record.begin("linear", what="FedAvg, linear model, d = 20, 10 rows of a client" + _small(record))
    cells = ((50, 1), (50, 5)) if record.small else ((1000, 1), (1000, 50), (10_000, 50))
    for clients, epochs in cells:
        data = linear(clients)
        few = record.rounds if clients <= 1000 else min(SLOW_ROUNDS, record.rounds)
        cpu = on_two_cores(partial(_linear_on_cpu, clients, epochs, few))
        where = {"device": "two cores", "engine": "batched", "precision": "fp32"}
        record.add("linear", clients=clients, local_epochs=epochs, **where, rounds=few, seconds=cpu)
        setup = linear_setup(data, epochs, str(record.device), record.rounds)
        found = time_rounds(setup, record.rounds)
        found |= {"cpu_over_device": cpu / found["seconds"]} | busy(setup)
        record.add("linear", clients=clients, local_epochs=epochs, **_where(setup), **found)


def busy(setup: Setup) -> dict[str, float]:
    """Seconds of a round in which a CUDA device computes, and its kernels; nothing where they cannot be told."""
    if setup.device.type != "cuda":
        return {}
    from torch.profiler import ProfilerActivity, profile

    try:
        with engine_of(setup) as engine:
            shared = dict(setup.initial_shared)
            engine.train(1, range(setup.data.clients), shared)
            torch.cuda.synchronize(setup.device)
            with profile(activities=[ProfilerActivity.CUDA]) as profiled:
                engine.train(2, range(setup.data.clients), shared)
                torch.cuda.synchronize(setup.device)
        events: list[Any] = [e for e in profiled.events() or [] if str(e.device_type).endswith("CUDA")]
        return {"device_seconds": sum(e.self_device_time_total for e in events) / 1e6, "kernels": len(events)}
    except Exception as error:  # a profiler that this machine does not let measure
        print(f"linear: not profiled: {error!r}", flush=True)
        return {}


# -- lora ---------------------------------------------------------------------------------------------------------


def measure_lora(record: Record) -> None:
    """BERT-base adapted by all clients at once, by one after the other, and by peft."""
    import transformers

    sizes: dict[str, Any] = (
        {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 128}
        if record.small
        else {}
    )
    clients, few = 4 if record.small else 50, min(2, record.rounds)
    data = random_texts(clients, TEXTS)
    config = transformers.BertConfig(**sizes)  # of two labels
    record.begin("lora", what="LoRA, BERT-base of random weights" + _small(record), clients=clients, texts=TEXTS,
                 batch=TEXT_BATCH, rank=RANK, layers=config.num_hidden_layers, targets="query,value")  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        transformers.BertForSequenceClassification(config).save_pretrained(folder)
        for precision in [p for p in record.precisions if p != "tf32"]:
            peft_seconds = time_peft(folder, data, record.device, precision, few)
            record.add("lora", device=str(record.device), engine="peft, one client at a time", precision=precision,
                       rounds=few, seconds=peft_seconds)  # fmt: skip
            for engine in ("batched", "serial"):
                setup = prepared(
                    "lora", data, model=f"hf:{folder}", model_options={"rank": RANK, "alpha": ALPHA},
                    batch_size=TEXT_BATCH, optimizer="sgd", lr=0.01, momentum=0.0, device=str(record.device),
                    precision=precision, engine=engine, rounds=record.rounds + 1,
                )  # fmt: skip
                whole = engine == "batched"
                found = time_rounds(setup, record.rounds if whole else few, None if whole else 2)
                record.add("lora", **_where(setup), **found, peft_over_ours=peft_seconds / found["seconds"])
                del setup


def time_peft(folder: str, data: FederatedDataset, device: torch.device, precision: str, times: int) -> float:
    """Seconds of a round in which peft adapts the model for one client after the other, in padded batches.

    As the library does it: the head is trained as well, the frozen model drops nothing out, each client begins with the
    same factors and gives its own.
    """
    import peft
    import transformers

    loaded: Any = transformers.AutoModelForSequenceClassification
    base = loaded.from_pretrained(folder, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    adapter = peft.LoraConfig(
        r=RANK, lora_alpha=int(ALPHA), lora_dropout=0.0, target_modules=["query", "value"], task_type="SEQ_CLS"
    )
    model: Any = peft.get_peft_model(base, adapter)
    model = model.to(device).train()
    trained: dict[str, Tensor] = {n: p for n, p in model.named_parameters() if p.requires_grad}
    start = {name: value.detach().clone() for name, value in trained.items()}
    batches = [padded(data, client, device) for client in range(data.clients)]

    def round_of(clients: int) -> list[dict[str, Tensor]]:
        answers = []
        for client in range(clients):
            with torch.no_grad():
                for name, value in trained.items():
                    value.copy_(start[name])
            optimizer = torch.optim.SGD(list(trained.values()), lr=0.01)
            for batch in batches[client]:
                optimizer.zero_grad(set_to_none=True)
                with autocast(precision, device):
                    loss = model(**batch).loss
                loss.backward()
                optimizer.step()
            answers.append({name: value.detach().clone() for name, value in trained.items()})
        return answers

    with computing_with(precision, 1):
        return time_calls(partial(round_of, data.clients), device, times, partial(round_of, min(2, data.clients)))


def padded(data: FederatedDataset, client: int, device: torch.device) -> list[dict[str, Tensor]]:
    """A client's texts as batches of transformers, padded to the longest of each."""
    batches = []
    index = data.train_indices(client)
    for first in range(0, len(index), TEXT_BATCH):
        at = index[first : first + TEXT_BATCH]
        rows, lengths = data.x_train[at], data.x_train[at, 0, 1]
        tokens = rows[:, 1 : 1 + int(lengths.max()), 0].astype(np.int64)
        there = (tokens >= 0).astype(np.int64)
        batch = {"input_ids": np.maximum(tokens, 0), "attention_mask": there, "labels": data.y_train[at]}
        batches.append({name: torch.as_tensor(value).to(device) for name, value in batch.items()})
    return batches


# -- all of them --------------------------------------------------------------------------------------------------


def _small(record: Record) -> str:
    return " (small)" if record.small else ""


def _where(setup: Setup) -> dict[str, str]:
    return {"device": str(setup.device), "engine": setup.config.engine, "precision": setup.config.precision}


MEASUREMENTS: dict[str, Callable[[Record], None]] = {
    "cifar": measure_cifar,
    "resnet": measure_resnet,
    "linear": measure_linear,
    "lora": measure_lora,
}


def main() -> None:
    """Measure what is asked for; one that fails is told of and does not keep the others from it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default=",".join(MEASUREMENTS), help=f"of {', '.join(MEASUREMENTS)}")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of each")
    parser.add_argument("--batch", type=int, default=128, help="images of a client in a step of resnet")
    parser.add_argument("--small", action="store_true", help="sizes to try it with, on a CPU too")
    parser.add_argument("--data-dir", default=os.environ.get("COMMONGROUND_DATA"), help="folder of CIFAR-10's files")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    flags = parser.parse_args()
    wanted = flags.only.split(",")
    if unknown := set(wanted) - set(MEASUREMENTS):
        parser.error(f"there is no measurement {', '.join(sorted(unknown))}; there are {', '.join(MEASUREMENTS)}")
    device = resolve_device(flags.device)
    words = f"python -m benchmarks.gpu --device {flags.device} --only {flags.only} --rounds {flags.rounds}"
    words += f" --batch {flags.batch}" + (" --small" if flags.small else "")
    known = figures.of_this_machine(words)
    known["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    record = Record(device, flags.rounds, flags.batch, flags.small, flags.data_dir, flags.out, known)
    failed: dict[str, str] = {}
    for name in wanted:
        began = time.perf_counter()
        try:
            MEASUREMENTS[name](record)
        except Exception as error:  # whatever one measurement raises, the others are worth their minutes
            traceback.print_exc()
            failed[name] = repr(error)
            known["failed"] = failed
        freed(device)
        print(f"{name}: took {time.perf_counter() - began:.0f} s in all", flush=True)
        record.write()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
