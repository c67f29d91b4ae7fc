"""Dense predictors that load released checkpoints."""
