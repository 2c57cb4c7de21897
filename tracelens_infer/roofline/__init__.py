"""Steps, a model and hardware -> how far attention and the whole step are from what the machine allows."""
