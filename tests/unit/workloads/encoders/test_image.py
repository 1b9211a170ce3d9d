"""The image encoders: shapes, stems, initial weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torchvision.models import resnet18

from workloads.encoders.image import ENCODERS, ImageEncoder, check_side, image_encoder, load_weights


def parameters(module: nn.Module) -> int:
    return sum(tensor.numel() for tensor in module.parameters())


@pytest.mark.parametrize("name", ENCODERS)
def test_features_have_the_stated_width(name: str) -> None:
    encoder = image_encoder(name, seed=0).eval()
    features = encoder(torch.randn(2, 3, 16, 16))
    assert features.shape == (2, encoder.features)
    assert torch.isfinite(features).all()


def test_encoders_have_the_expected_feature_widths() -> None:
    assert {name: image_encoder(name, seed=0).features for name in ENCODERS} == {
        "tiny": 128, "resnet18": 512, "resnet34": 512, "resnet50": 2048,
    }  # fmt: skip


def test_resnet18_with_imagenet_stem_equals_that_of_torchvision() -> None:
    encoder, reference = image_encoder("resnet18", "imagenet", seed=0), resnet18()
    assert parameters(encoder) == parameters(reference) - parameters(reference.fc)
    reference.load_state_dict(encoder.layers.state_dict(), strict=False)
    reference.fc = nn.Identity()  # type: ignore[assignment]
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(encoder.eval()(images), reference.eval()(images))


def test_the_cifar_stem_keeps_the_resolution() -> None:
    encoder = image_encoder("resnet18", "cifar", seed=0)
    assert stage_one(encoder, torch.randn(1, 3, 32, 32)).shape == (1, 64, 32, 32)
    assert stage_one(image_encoder("resnet18", "imagenet", seed=0), torch.randn(1, 3, 32, 32)).shape == (1, 64, 8, 8)


def test_zero_init_makes_residual_branches_start_at_zero() -> None:
    last = [module.bn2.weight for module in image_encoder("resnet18", seed=0).modules() if hasattr(module, "bn2")]
    assert last
    assert all((weight == 0).all() for weight in last)


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = image_encoder("resnet18", seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(2)
    assert equal(first, image_encoder("resnet18", seed=3))
    assert not equal(first, image_encoder("resnet18", seed=4))


def test_cifar_stem_is_initialised_by_its_fan_out() -> None:
    weight = image_encoder("resnet18", "cifar", seed=0).layers.conv1.weight
    expected = (2 / (64 * 9)) ** 0.5  # He et al., 2015: by the fan out
    assert weight.std().item() == pytest.approx(expected, rel=0.1)


def test_convolutions_are_channels_last() -> None:
    encoder = image_encoder("tiny", seed=0)
    weights = [module.weight for module in encoder.modules() if isinstance(module, nn.Conv2d)]
    assert len(weights) == 3
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


def test_error_for_an_unknown_encoder_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown encoder 'resnet20'; expected one of tiny, resnet18"):
        image_encoder("resnet20", seed=0)  # type: ignore[arg-type]


def stage_one(encoder: ImageEncoder, images: torch.Tensor) -> torch.Tensor:
    layers = encoder.layers
    output: torch.Tensor = layers.layer1(layers.maxpool(layers.relu(layers.bn1(layers.conv1(images)))))
    return output


def equal(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def test_weights_of_a_file_are_loaded(tmp_path: Path) -> None:
    """The file also has the classifier's weights, like the files of torchvision."""
    reference = resnet18()
    file = tmp_path / "resnet18.safetensors"
    save_file(reference.state_dict(), file)
    encoder = image_encoder("resnet18", "imagenet", seed=0)
    load_weights(encoder, file)
    assert torch.equal(encoder.layers.layer4[1].conv2.weight, reference.layer4[1].conv2.weight)

    with pytest.raises(
        ValueError, match=r"do not fit: conv1\.weight is \(64, 3, 7, 7\) there and \(64, 3, 3, 3\) here"
    ):
        load_weights(image_encoder("resnet18", "cifar", seed=0), file)
    with pytest.raises(ValueError, match=r"do not fit: 0\.weight is missing there"):
        load_weights(image_encoder("tiny", seed=0), file)
    tiny = image_encoder("tiny", seed=0)
    own = {name: value.contiguous() for name, value in tiny.layers.state_dict().items()}
    save_file({**own, "more": torch.ones(1)}, file)
    with pytest.raises(ValueError, match="they have more, which the encoder does not have"):
        load_weights(tiny, file)
    file.write_bytes(b"no weights")
    with pytest.raises(ValueError, match="cannot be read"):
        load_weights(tiny, file)


@pytest.mark.parametrize(
    ("name", "features"), [("vit_tiny_patch16_224", 192), ("resnet10t", 512), ("mobilenetv3_small_050", 1024)]
)
def test_timm_models_encode_images_of_two_sizes(name: str, features: int) -> None:
    """A ViT also encodes images of other sizes than its position embeddings have; the others are convolutional."""
    pytest.importorskip("timm")
    encoder = image_encoder(f"timm/{name}", seed=1, side=32).eval()
    assert encoder.features == features
    assert encoder(torch.randn(2, 3, 32, 32)).shape == (2, features)
    assert encoder(torch.randn(2, 3, 64, 64)).shape == (2, features)
    assert equal(encoder, image_encoder(f"timm/{name}", seed=1, side=32))


def test_unknown_timm_models_and_image_sizes_are_refused() -> None:
    pytest.importorskip("timm")
    with pytest.raises(
        ValueError, match=r"timm has no model 'vit_tini_patch16_224'; did you mean timm/vit_tiny_patch16"
    ):
        image_encoder("timm/vit_tini_patch16_224", seed=0)
    with pytest.raises(ValueError, match="vit_tiny_patch16_224 does not take images of 8 pixels"):
        image_encoder("timm/vit_tiny_patch16_224", seed=0, side=8)


class OneSize(nn.Module):
    """A model that takes images of one size only, like some models of timm."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        assert images.shape[-1] == 48, f"Input height ({images.shape[-1]}) doesn't match model (48)"
        return images.flatten(1)[:, :7]


def test_image_side_that_a_model_does_not_take_is_refused() -> None:
    layers = OneSize().train()
    assert check_side(layers, "timm/one", 48) == 7
    assert layers.training
    with pytest.raises(ValueError, match=r"timm/one does not take images of 32 pixels: Input height \(32\)"):
        check_side(layers, "timm/one", 32)
