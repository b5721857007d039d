"""Handwritten digits, as bundled with scikit-learn, with Lightning.

torchrun --nproc-per-node 2 examples/lightning_digits.py          # legato
torchrun --nproc-per-node 2 examples/lightning_digits.py --ddp    # Lightning's own DistributedDataParallel
"""

import argparse
import os

import lightning.pytorch as lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import legato.integrations.lightning  # noqa: F401 - tells Lightning what "legato" is


class Classifier(lightning.LightningModule):
    def __init__(self, lr: float) -> None:
        super().__init__()
        self._lr = lr
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        del index
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        del index
        accuracy = (self.layers(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("accuracy", accuracy, sync_dist=True)

    def on_train_epoch_end(self) -> None:
        if self.trainer.is_global_zero:
            metrics = self.trainer.callback_metrics
            print(f"epoch {self.current_epoch}  loss {metrics['loss']:.4f}  accuracy {metrics['accuracy']:.3f}")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=self._lr, momentum=0.9)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32, help="images of each worker and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--ddp", action="store_true", help="Lightning's strategy in place of legato's")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    lightning.seed_everything(0, verbose=False)
    images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images = images.float() / 16
    test, train = slice(0, 297), slice(297, None)
    trainer = lightning.Trainer(
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        strategy="ddp" if options.ddp else "legato",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if options.ddp else 1,
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(
        Classifier(options.lr),
        DataLoader(TensorDataset(images[train], labels[train]), options.batch, shuffle=True, drop_last=True),
        DataLoader(TensorDataset(images[test], labels[test]), options.batch),
    )


if __name__ == "__main__":
    main()
