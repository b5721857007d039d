"""A small GPT-2, from scratch, that learns to write like this repository's licence: `transformers.Trainer`.

torchrun --nproc-per-node 2 examples/transformers_gpt.py          # legato
torchrun --nproc-per-node 2 examples/transformers_gpt.py --ddp    # the trainer's own DistributedDataParallel
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from legato.integrations.transformers import LegatoTrainer

ROOT = Path(__file__).parent.parent


class Windows(Dataset[dict[str, torch.Tensor]]):
    """All windows of a text, as bytes."""

    def __init__(self, text: bytes, length: int) -> None:
        self._windows = torch.tensor(list(text)).unfold(0, length, length)

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self._windows[index], "labels": self._windows[index]}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8, help="sequences of each worker and step")
    parser.add_argument("--length", type=int, default=64, help="characters of a sequence")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--ddp", action="store_true", help="Trainer in place of LegatoTrainer")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    text = (ROOT / "LICENSE").read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        training = TrainingArguments(
            folder,
            max_steps=options.steps,
            per_device_train_batch_size=options.batch,
            learning_rate=options.lr,
            warmup_steps=options.steps // 10,
            logging_steps=max(options.steps // 10, 1),
            eval_on_start=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        )
        set_seed(0)
        config = GPT2Config(
            vocab_size=256,
            n_positions=options.length,
            n_embd=options.width,
            n_layer=options.depth,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
        )
        trainer = (Trainer if options.ddp else LegatoTrainer)(
            model=GPT2LMHeadModel(config),
            args=training,
            train_dataset=Windows(text[1000:], options.length),
            eval_dataset=Windows(text[:1000], options.length),
        )
        trainer.train()
        trainer.evaluate()
    if trainer.is_world_process_zero():
        before, after = (entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry)
        print(f"on text not trained on: loss {before:.4f} before, loss {after:.4f} after")


if __name__ == "__main__":
    main()
