"""What carries out a client's verbs: one client at a time, or a stacked cohort."""
