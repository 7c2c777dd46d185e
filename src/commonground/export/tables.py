"""A table's schema as it travels with one model: how raw rows become its inputs, and nothing of the other clients."""

from __future__ import annotations

from dataclasses import replace

from commonground.data.tables.schema import TableSchema
from commonground.engine.trained import Trained
from commonground.errors import ConfigError

__all__ = ["travelling_schema"]


def travelling_schema(trained: Trained, client: int | None) -> TableSchema | None:
    """The run's schema without other clients' scales and names, and without the lowest and highest training values.

    Under ``--scaling client`` the client's own scale takes the pooled one's place, so that raw rows are scaled by the
    model itself, whoever reads it.

    Args:
        trained: of the run.
        client: whose model travels; None for the global one.

    Returns:
        None if the run was not trained on a table.

    Raises:
        ConfigError: every client scales by its own statistics, and the global model is meant.
    """
    schema = trained.schema
    if schema is None:
        return None
    features = tuple(replace(column, low=None, high=None) for column in schema.features)
    schema = replace(schema, features=features, few_rows={}, notes=(), split="")
    if not schema.client_scales:
        return schema
    if client is None:
        raise ConfigError(f"{trained.where} scales by each client's own statistics, so name a client")
    own = trained.scale_of(client)
    others = len(schema.inputs) - len(own["mean"])
    return replace(schema, mean=(*own["mean"], *[0.0] * others), std=(*own["std"], *[1.0] * others), client_scales={})
