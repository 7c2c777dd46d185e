"""FLUTE (Liu, Shen and Yang 2024): a module per figure, table or theorem."""
