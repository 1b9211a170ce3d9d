"""A Lightning module: orchestrator run examples/functions/digits.py:Classifier epochs=5 objective=acc:max --local"""

import lightning
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def loader(seed):
    x = torch.randn(128, 8, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(x, x[:, :3].argmax(1)), 32, shuffle=seed == 0)


# fmt: off
class Points(lightning.LightningDataModule):
    def train_dataloader(self): return loader(0)
    def val_dataloader(self): return loader(1)
    def test_dataloader(self): return loader(2)


class Classifier(lightning.LightningModule):
    def __init__(self, lr: float = 1e-2, width: int = 16):
        super().__init__()
        self.lr = lr
        self.net = torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Dropout(0.1), torch.nn.Linear(width, 3))

    def step(self, batch, split):
        scores = self.net(batch[0])
        loss = cross_entropy(scores, batch[1])
        correct = (scores.argmax(1) == batch[1]).float()
        self.log_dict({f"{split}_loss": loss, f"{split}_acc": correct.mean()}, on_step=False, on_epoch=True)
        return loss

    def training_step(self, batch): return self.step(batch, "train")
    def validation_step(self, batch): self.step(batch, "val")
    def test_step(self, batch): self.step(batch, "test")
    def configure_optimizers(self): return torch.optim.Adam(self.parameters(), self.lr)
