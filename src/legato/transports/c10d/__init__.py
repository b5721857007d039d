"""Parts over any process group of torch.distributed."""
