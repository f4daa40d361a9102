"""Training: language-model pretraining and supervised instruction tuning."""
