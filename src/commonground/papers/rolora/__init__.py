"""RoLoRA (Chen et al. 2025): a module per figure, table or theorem."""
