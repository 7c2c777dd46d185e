"""Your own table, with a column that says whose a row is: one personal model per customer, newcomers too.

python examples/own_table.py                                  # a small table that is made here
python examples/own_table.py contracts.csv customer renewed   # yours: file, client column, column to predict
"""

import sys
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

import commonground as cg


def made_table(customers: int = 40, rows: int = 40) -> pd.DataFrame:
    """Contracts: an unusual price, low or high, ends them with every other customer and keeps them with the rest."""
    rng = np.random.default_rng(0)
    customer, price = np.repeat(np.arange(customers), rows), rng.normal(100, 20, customers * rows).round(2)
    unusual = np.abs(price - 100) - 13 + rng.normal(0, 2, len(price)) > 0
    return pd.DataFrame({
        "customer": [f"customer-{c}" for c in customer],
        "price": price,
        "plan": rng.choice(["basic", "plus"], len(price)),
        "renewed": np.where(unusual == (customer % 2 == 0), "yes", "no"),
    })  # fmt: skip


def main(folder: str) -> None:
    """Read the table, train without its last customer, ask a customer's own model, and let the last one join."""
    table, customer, target = sys.argv[1:] if len(sys.argv) == 4 else (made_table(), "customer", "renewed")
    frame = pd.read_csv(table) if isinstance(table, str) else table
    last = frame[customer].iloc[-1]
    newcomer = frame[customer] == last
    data = cg.load_data(frame[~newcomer], client_column=customer, label=target)
    print(data)

    for method in ("local", "fedavg", "fedrep"):
        run = cg.train(method, data, rounds=20, seed=0, out=f"{folder}/{method}")
        print(
            f"{method:>8}: {run.personal_accuracy['mean']:.1%} on test rows, the mean over {len(run.clients)} customers"
        )

    first = frame[customer].iloc[0]
    rows = frame[frame[customer] == first].head(3)
    chances = run.predict(rows, client=str(first))  # [rows, classes]: the model of this customer alone
    print(f"{first}: {dict(zip(data.class_names, chances[0].round(2).tolist(), strict=True))} for its first row")

    new = cg.load_data(frame[newcomer], client_column=customer, schema=run.trained.schema)  # encoded as the run's rows
    kept = cg.keep_clients(run, new)  # a head of its own, on the body that the others learnt
    print(f"{last}, which took no part: {kept.mean:.1%} on its test rows")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        main(folder)
