"""Tables of the user's own: read, understood column by column, encoded by a schema that goes with the run."""
