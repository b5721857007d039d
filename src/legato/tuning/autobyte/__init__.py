"""AutoByte's tuner: a meta-network, what it is trained on, and how it is fine-tuned."""
