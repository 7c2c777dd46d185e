"""FedRep (Collins et al. 2021): a module per figure, table or theorem."""
