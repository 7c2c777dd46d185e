"""Figures of speed, from the files that the benchmarks left in ``results/``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peers
from marks import table

RESULTS = Path(__file__).parents[2] / "results"


def speed(name: str) -> str:
    """One benchmark's table, with the command and the machine that made it; a sentence if it was not measured yet."""
    made_by = {
        "bench": _rounds, "lora-bench": _lora, "service-bench": _service, "network-bench": _network,
        "benchmarks/bench": _kinds, "benchmarks/dry-run": _planned, "benchmarks/million-clients": _million,
        "benchmarks/peers": peers.beside, "benchmarks/peers-fedavg": peers.beside,
        "benchmarks/peers-default": peers.beside, "benchmarks/precision": _precision, "benchmarks/gpu": _gpu,
    }[name]  # fmt: skip
    file = RESULTS / f"{name}.json"
    if not file.is_file():
        return "Not measured on a quiet machine yet, so there is no figure here."
    found = json.loads(file.read_text("utf-8"))
    made = made_by(found)
    torch = found.get("torch") or found["versions"]["torch"]
    machine = found["machine"] + (f", {found['device']}" if "device" in found else "")
    return f"{made}\n\n`{found['command']}`, {machine}, PyTorch {torch} ([{name}.json](../../results/{name}.json))."


def _rounds(found: dict[str, Any]) -> str:
    one = found["cifar_round"]
    rows = [
        ("FedRep round on CIFAR-10, 10 of 100 clients, ten head epochs and one body epoch", f"{one['seconds']:.2f} s"),
        ("arithmetic done in it", f"{one['gflops']:.0f} GFLOP/s"),
        ("what the same machine convolves at most, measured beside it", f"{one['peak']:.0f} GFLOP/s"),
        ("share of that", f"{one['share']:.0%}"),
    ]
    rows += [
        (f"round of 50 sampled clients of {each['clients']:,}", f"{each['seconds'] * 1000:.0f} ms")
        for each in found["scaling"]
    ]
    return table(("what", "measured"), rows, numeric=[1])


def _lora(found: dict[str, Any]) -> str:
    rows = [
        (
            row["batch_size"], row["tokens"], f"{row['loop_seconds']:.2f} s", f"{row['folded_seconds']:.2f} s",
            f"{row['kept_seconds']:.2f} s", f"{row['kept_times']:.1f} ×",
        )
        for row in found["rows"]
    ]  # fmt: skip
    heads = ("batch", "tokens a pass", "client after client", "folded", "folded, hidden states kept", "faster")
    return table(heads, rows, numeric=range(6))


def _service(found: dict[str, Any]) -> str:
    rows = [
        ("requests a second", f"{found['requests_per_second']:.0f}"),
        ("median", f"{found['median_ms']:.1f} ms"),
        ("slowest hundredth", f"{found['p99_ms']:.1f} ms"),
    ]
    return table((f"{found['askers']} askers, a row a request", "measured"), rows, numeric=[1])


def _network(found: dict[str, Any]) -> str:
    accuracy, sent = found["accuracy"], found["bytes"]
    rows = [
        ("seconds a round", found["commonground_seconds_per_round"], found["flower_seconds_per_round"]),
        ("accuracy at the end", f"{accuracy['commonground']:.1%}", f"{accuracy['flower']:.1%}"),
        ("bytes counted by the ledger", f"{sent['ledger']:,}", None),
        (f"bytes on the wire, {sent['messages']} messages", f"{sent['wire']:,}", None),
    ]
    return table(("what", "commonground deploy", "Flower's own FedAvg"), rows, numeric=[1, 2])


def _kinds(found: dict[str, Any]) -> str:
    rows = [
        (
            row["what"], f"{row['cpu_seconds']:.3g} s",
            f"{row['gflops']:.3g} GFLOP/s" if "gflops" in row else None,
            f"{row['share']:.1%} of {row['peak_of']}" if "share" in row else None,
        )
        for row in found["rows"].values() if "cpu_seconds" in row
    ]  # fmt: skip
    start = found["rows"].get("start")
    if start is not None:
        rows += [("`commonground --version`", f"{start['version_cpu_seconds']:.2f} s", None, None)]
        rows += [("Python with PyTorch and the engines", f"{start['train_cpu_seconds']:.2f} s", None, None)]
    return table(("what", "seconds of the processor", "arithmetic", "share of the peak"), rows, numeric=[1, 2, 3])


def _planned(found: dict[str, Any]) -> str:
    rows = [
        (
            row["what"],
            f"{row['planned']['seconds']:.1f} / {row['real']['seconds']:.1f} s",
            *(
                f"{row['planned'][key] / 1e6:,.1f} / {row['real'][key] / 1e6:,.1f} MB"
                for key in ("peak_bytes", "disk_bytes", "sent_bytes")
            ),
        )
        for row in found["rows"].values()
    ]
    return table(("planned / real", "seconds", "memory", "disk", "sent"), rows, numeric=[1, 2, 3, 4])


def _million(found: dict[str, Any]) -> str:
    few, many = found["rows"][0], found["rows"][-1]
    kinds = (
        ("seconds a round", "seconds_per_round", 1, "{:.2f}"),
        ("memory beyond the data, until the last round", "rounds_beyond_data_bytes", 1e6, "{:,.0f} MB"),
        ("the same with the last test of everyone and the files", "beyond_data_bytes", 1e6, "{:,.0f} MB"),
        ("files, report included", "file_bytes", 1e6, "{:,.1f} MB"),
    )
    rows = [
        (what, form.format(few[key] / unit), form.format(many[key] / unit), f"{many[key] / few[key]:.2f} ×")
        for what, key, unit, form in kinds
    ]
    heads = (f"{few['sampled']:,} sampled a round of", f"{few['clients']:,}", f"{many['clients']:,}", "times")
    return table(heads, rows, numeric=[1, 2, 3])


def _gpu(found: dict[str, Any]) -> str:
    what = {
        "cifar": "FedRep on CIFAR-10, 10 of 100 clients, steps {steps}",
        "resnet": "local SGD of ResNet-18, {clients} clients of {batch} images, engine {engine}",
        "lora": "LoRA on BERT-base, {clients} clients of {texts} texts, engine {engine}",
        "linear": "FedAvg of {clients:,} linear models, {local_epochs} epochs",
    }
    beside = (
        ("cpu_over_device", "{:.1f} × two cores"),
        ("peft_over_ours", "{:.1f} × peft, one client at a time"),
        ("share_of_faster_plain", "{:.2f} × one plain loop over all images"),
    )
    rows = [
        (
            text.format(**{**found[name], **row}),
            row["precision"],
            f"{row['seconds'] * 1000:.0f} ms",
            form.format(row[key]),
        )
        for name, text in what.items()
        for row in found[name]["rows"]
        for key, form in beside
        if key in row
    ]
    return table(("a round of", "precision", "measured", "speed"), rows, numeric=[2])


def _precision(found: dict[str, Any]) -> str:
    rows = [
        (
            f"{row['method']}, CIFAR-10 (100, {row['classes']})",
            f"{row['seeds']}",
            f"{row['fp32']:.1f} %",
            f"{row['points']:+.2f}",
            f"{row['low']:+.2f} to {row['high']:+.2f}" if row["seeds"] > 1 else None,
            f"{row['times_faster']:.2f} ×",
        )
        for row in found["compared"]
    ]
    heads = ("setting", "seeds", "fp32", "bf16 − fp32, points", "95 %", "CPU seconds, fp32 / bf16")
    return table(heads, rows, numeric=[1, 2, 3, 4, 5])
