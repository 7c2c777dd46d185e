"""Rounds of other simulators beside ours, from the file that ``python -m benchmarks.peers`` left."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from marks import plain, table

METHODS = {"fedrep": "FedRep", "fedavg": "FedAvg"}
KINDS = {"round_cpu": "CPU seconds of a round", "round_wall": "wall seconds of a round",
         "test_cpu": "CPU seconds of a test of all clients", "memory_mb": "memory"}  # fmt: skip


def beside(found: dict[str, Any]) -> str:
    """The table, whom it could not hold, where ours loses, and what differs for each."""
    rows = [_row(peer, name, done) for peer in found["peers"] for name, done in peer["methods"].items()]
    heads = [
        "program",
        "round of",
        "ours, CPU s",
        "its, CPU s",
        "times",
        "wall, times",
        "test, times",
        "ours, MB",
        "its, MB",
    ]
    if any(len(row) > len(heads) for row in rows):
        heads += ["times, ours in bf16"]
    parts = [table(heads, rows, numeric=range(2, len(heads))), _work(found), _losses(found["peers"])]
    parts += [f"Not measured: {plain(each['name'])} ({plain(each['why'])})." for each in found["skipped"]]
    parts += ["\n".join(f"- {line}" for line in _differences(found["peers"]))]
    return "\n\n".join(parts)


def _row(peer: dict[str, Any], method: str, done: dict[str, Any]) -> list[object]:
    ours, its = (done[who]["round_cpu"] for who in ("ours", "peer"))
    ratio = done["ratio"]
    row: list[object] = [
        plain(peer["title"]), METHODS[method], _seconds(ours), _seconds(its), f"**{ratio['round_cpu']:.1f}**",
        f"{ratio['round_wall']:.1f}", f"{ratio['test_cpu']:.1f}", done["ours"]["memory_mb"], done["peer"]["memory_mb"],
    ]  # fmt: skip
    return row + ([f"{done['ratio_bf16']['round_cpu']:.1f}"] if "ratio_bf16" in done else [])


def _seconds(figure: dict[str, Any]) -> str:
    return f"{figure['median']:.2f} ({figure['min']:.2f})"


def _work(found: dict[str, Any]) -> str:
    work, loads = found["work"], [x for p in found["peers"] for d in p["methods"].values() for x in d["load"]]
    which = {"one": "on one core", "default": "on all cores, with each program's defaults"}[found["cores"]]
    data = "random pictures" if work["per_client"] else "CIFAR-10"
    load = f"; load of the machine {min(loads):.1f} to {max(loads):.1f}" if loads else ""
    return (
        f"Medians (minima) {which}: {data}, {work['clients']} clients of two classes, {work['sampled']} in a round, "
        f"batches of {work['batch']}; FedRep {work['head_epochs']} epochs on the head and {work['body_epochs']} on the "
        f"body, FedAvg {work['epochs']} epochs{load}."
    )


def _losses(peers: list[dict[str, Any]]) -> str:
    lost = [
        f"{plain(peer['title'])}, {METHODS[method]}: {what} ({done['ratio'][kind]:.2f} times)"
        for peer in peers
        for method, done in peer["methods"].items()
        for kind, what in KINDS.items()
        if done["ratio"][kind] < 1
    ]
    return (
        f"Where ours takes more, its figure over ours: {'; '.join(lost)}."
        if lost
        else "In none of these figures does ours take more."
    )


def _differences(peers: list[dict[str, Any]]) -> Iterator[str]:
    for peer in peers:
        where = f"{plain(peer['title'])} ({plain(peer['version'])}, Python {peer['python']})"
        yield f"{where}: {plain('; '.join(peer['differs']))}." if peer["differs"] else f"{where}."
