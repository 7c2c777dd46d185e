"""Local steps and feature heterogeneity (Bao, Crawshaw, Liu 2024): a module per figure, table or theorem."""
