"""Decoding of one image file: modes become RGB, shapes become square, damaged files are refused with the reason."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from workloads.data.images.decode import Undecodable, decode, square


def encoded(image: Image.Image, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


def jpeg(progressive: bool) -> bytes:
    values = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).save(file, "JPEG", progressive=progressive)
    return file.getvalue()


def pixels(image: Image.Image) -> list[tuple[int, ...]]:
    return [tuple(pixel) for pixel in np.asarray(image).reshape(-1, 3).tolist()]


def test_gray_image_is_repeated_in_three_channels() -> None:
    assert pixels(decode(encoded(Image.new("L", (2, 1), 77)))) == [(77, 77, 77)] * 2


def test_sixteen_bit_gray_is_reduced_to_its_upper_eight_bits() -> None:
    image = Image.fromarray(np.array([[0, 0x8000, 0xFFFF]], np.uint16))
    assert pixels(decode(encoded(image))) == [(0, 0, 0), (128, 128, 128), (255, 255, 255)]


def test_palette_image_is_decoded_to_its_palette_colours() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([9, 8, 7, 200, 100, 50])
    image.putpixel((1, 0), 1)
    assert pixels(decode(encoded(image))) == [(9, 8, 7), (200, 100, 50)]


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparent_pixels_become_white(mode: str) -> None:
    image = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (40, 40, 40, 255))
    image = image.quantize(2) if mode == "P" else image.convert(mode)
    assert pixels(decode(encoded(image))) == [(255, 255, 255), (40, 40, 40)]


def test_half_transparent_pixel_is_blended_with_white() -> None:
    assert pixels(decode(encoded(Image.new("RGBA", (1, 1), (0, 0, 0, 127))))) == [(128, 128, 128)]


def test_cmyk_image_is_converted_to_rgb() -> None:
    image = decode(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"))
    red, green, blue = pixels(image)[0]
    assert red > 200
    assert max(green, blue) < 50


def test_embedded_colour_profile_leaves_pixels_unchanged() -> None:
    file = io.BytesIO()
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    Image.new("RGB", (4, 4), (1, 2, 3)).save(file, "PNG", icc_profile=profile)
    assert pixels(decode(file.getvalue()))[0] == (1, 2, 3)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no format that is known"),
        (b"no image at all", "no format that is known"),
        (encoded(Image.effect_noise((64, 64), 50), "JPEG")[:-500], "truncated"),
        (encoded(Image.new("F", (4, 4)), "TIFF"), "32 bits"),
    ],
)
def test_undecodable_image_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(Undecodable, match=reason):
        decode(content)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("zeros", [1, 2, 50, 200, 400])
def test_jpeg_whose_tail_is_zeros_is_refused(zeros: int, progressive: bool) -> None:
    """libjpeg continues with made-up values, and Pillow detects only some of these files."""
    whole = jpeg(progressive)
    assert decode(whole).size == (32, 32)
    with pytest.raises(Undecodable, match=r"truncated|a JPEG without an end"):
        decode(whole[:-zeros] + bytes(zeros))


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("behind", [b"\x00" * 9, b"\xff\xda\x00\x00 a camera's film"])
def test_jpeg_followed_by_other_bytes_is_decoded(behind: bytes, progressive: bool) -> None:
    assert decode(jpeg(progressive) + behind).size == (32, 32)


def test_end_of_a_thumbnail_is_not_taken_for_the_end_of_the_jpeg() -> None:
    thumbnail = b"Exif\0\0" + jpeg(False)
    segment = b"\xff\xe1" + (len(thumbnail) + 2).to_bytes(2, "big") + thumbnail
    whole = jpeg(False)
    behind = whole[:2] + segment + whole[2:]
    assert decode(behind + b" ").size == (32, 32)
    with pytest.raises(Undecodable):
        decode(behind[:-300] + bytes(300))


@pytest.mark.parametrize(
    "error", [RuntimeError("Failed to decode"), NotImplementedError(), KeyError(7), IndexError("x")]
)
def test_any_error_of_an_image_reader_raises_undecodable(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow's readers of AVIF and DDS raise such errors."""

    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr("PIL.PngImagePlugin.PngImageFile.load", broken)
    with pytest.raises(Undecodable, match=str(error) or type(error).__name__):
        decode(encoded(Image.new("L", (2, 2))))


def test_a_file_is_decoded_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(Image.new("RGB", (3, 3), (5, 6, 7))))
    assert pixels(decode(tmp_path / "a.png"))[0] == (5, 6, 7)


def test_oblong_image_is_cropped_to_its_centre() -> None:
    stripes = np.repeat(np.array([[10, 20, 30]], np.uint8), 4, axis=1).repeat(4, axis=0)[..., None].repeat(3, axis=2)
    found = square(Image.fromarray(stripes), 4)
    assert found.shape == (3, 4, 4)
    assert (found == 20).all()
    assert square(Image.fromarray(stripes.transpose(1, 0, 2)), 2).mean() == 20


def test_an_image_of_the_right_size_is_left_alone() -> None:
    values = np.random.default_rng(0).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    assert (square(decode(values), 5) == values.transpose(2, 0, 1)).all()


def test_larger_images_are_antialiased() -> None:
    board = np.indices((64, 64)).sum(0)[..., None].repeat(3, axis=2) % 2 * 255
    assert square(Image.fromarray(board.astype(np.uint8)), 8) == pytest.approx(127.5, abs=8)
