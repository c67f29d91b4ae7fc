"""Calibration on any model: where its head reads, what is kept, files, and which images to learn from."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dense_folders import save_model
from gramloop.errors import GramLoopError
from gramloop.mitigations import (
    CalibrationStats,
    apply,
    calibrate,
    parse_mitigations,
    split_for_calibration,
)
from gramloop.mitigations.mitigated import needs_calibration
from gramloop.shifts import corrupt
from gramloop.tasks.loading import open_model

# transformers folder: where its head reads, and of which blocks
PLACES = {
    "DepthAnything": ("norm", [1, 3, 4, 5]),
    "UperNet on Dinov2": ("norm", [1, 3, 4, 5]),
    "Eomt": ("norm", [4, 5]),
    "EomtDinov3": ("norm", [4, 5]),
    "Beit": ("states", [0, 1, 2, 3, 4, 5]),
    "DPT depth": ("states", [0, 1, 2, 3, 4, 5]),
    "LwDetr": ("states", [1, 3, 5]),
    "Yolos": (
        "blocks",
        [4],
    ),  # its head reads detection tokens, which attend to the patches in the last block
    "Segformer": ("norm", []),  # no ViT
}


@pytest.mark.parametrize("name", PLACES)
def test_where_the_head_of_a_folder_reads(tmp_path, images, name):
    predictor = open_model(f"hf:{save_model(name, tmp_path / 'm')}")
    stats = calibrate(predictor, images)
    assert (stats.at, sorted(stats.means)) == PLACES[name]
    assert stats.pixels
    assert stats.images == len(images)
    if not stats.means:
        with pytest.raises(GramLoopError, match="no torch module with one ViT was found in Segformer"):
            apply("recentre:c=1", predictor, stats)
        return
    returned = []
    hook = predictor.model.register_forward_hook(
        lambda module, args, output: returned.append(next(iter(output.values())))
    )
    predictor.predict(images[0])
    apply("recentre:1", predictor, stats).predict(images[0])
    apply("recentre:c=1000", predictor, stats).predict(images[0])
    hook.remove()
    assert not torch.equal(returned[0], returned[1]), "its head sees the change"
    assert torch.equal(returned[0], returned[2])


def test_queries_among_the_tokens_are_no_patches(tmp_path, images):
    predictor = open_model(f"hf:{save_model('Eomt', tmp_path / 'm')}")
    stats, normed = calibrate(predictor, images), []
    norm = predictor.host.final_norm
    with torch.no_grad():
        recentred = apply("recentre:1", predictor, stats)
        hook = norm.register_forward_hook(lambda module, args, output: normed.append(output))
        predictor.predict(images[0])
        recentred.predict(images[0])
        hook.remove()
    # before the last block, where recentred patches have not yet moved the queries through mask attention
    plain, moved = normed[len(normed) // 2 - 2], normed[-2]
    others = plain.shape[1] - 16  # four by four patches, after five queries and the class token
    assert torch.equal(plain[:, :others], moved[:, :others])
    torch.testing.assert_close(
        moved[:, others:].mean(1), stats.means[4].expand(len(moved), -1), rtol=0, atol=1e-4
    )


def test_recentring_inside_the_blocks_excludes_a_replay(tmp_path, images):
    predictor = open_model(f"hf:{save_model('Yolos', tmp_path / 'm')}")
    stats = calibrate(predictor, images)
    with pytest.raises(GramLoopError, match="a replay runs through the same blocks"):
        apply("recentre:c=1+replay:window=2-2", predictor, stats)


@pytest.mark.parametrize("kind", ["folder", "module", "function"])
def test_pixels_are_treated_for_any_model(request, kind, images, all_stats):
    predictor, stats = request.getfixturevalue(kind), all_stats[kind]
    for text, shift in [
        ("levels", "contrast"),
        ("sharpen", "defocus_blur"),
        ("denoise", "gaussian_noise"),
    ]:
        shifted = corrupt(images[0], shift, 4, np.random.default_rng(0))
        treated = parse_mitigations(text)[0].filtered(shifted, stats)
        assert not np.array_equal(treated, shifted)
        found = apply(text, predictor, stats).predict(shifted)
        np.testing.assert_array_equal(found.values, predictor.predict(treated).values)


@pytest.mark.parametrize("kind", ["folder", "module"])
def test_features_of_any_model_are_recentred(request, kind, images, all_stats):
    predictor, stats = request.getfixturevalue(kind), all_stats[kind]
    pale = corrupt(images[0], "contrast", 4, np.random.default_rng(0))
    plain = predictor.predict(pale).values
    assert not np.array_equal(apply("recentre:0.5", predictor, stats).predict(pale).values, plain)
    np.testing.assert_array_equal(predictor.predict(pale).values, plain)
    pair = apply("recentre:0.5+replay:window=2-3,replays=1", predictor, stats).predict(pale, paired=True)
    ordinary = apply("recentre:0.5", predictor, stats).predict(pale)
    np.testing.assert_array_equal(pair.baseline.values, ordinary.values)


def test_statistics_survive_their_file(tmp_path, stats, all_stats):
    path = tmp_path / "stats.safetensors"
    for each in (stats, all_stats["function"], replace(stats, at="blocks", input_noise=None)):
        each.save(path)
        again = CalibrationStats.read(path)
        for name in ("noise", "images", "backbone", "input_noise", "pixels", "at"):
            assert getattr(again, name) == getattr(each, name)
        assert again.means.keys() == again.spreads.keys() == each.means.keys()
        for tap in each.means:
            assert torch.equal(again.means[tap], each.means[tap])
            assert torch.equal(again.spreads[tap], each.spreads[tap])
    path.write_bytes(b"nothing")
    with pytest.raises(GramLoopError, match="cannot read the calibration statistics"):
        CalibrationStats.read(path)


def test_statistics_of_other_taps_are_refused(segmenter, stats):
    tap = next(iter(stats.means))
    for other in (
        replace(stats, means={0: stats.means[tap]}, spreads={0: stats.spreads[tap]}),
        replace(stats, at="states"),
    ):
        with pytest.raises(GramLoopError, match="and the head reads blocks"):
            apply("recentre:c=1", segmenter, other)


def test_the_split_is_disjoint_and_the_same_in_any_order():
    names = [f"image {number}" for number in range(100)]
    learn, judge = split_for_calibration(names)
    assert len(learn) == 32
    assert sorted([*learn, *judge]) == list(range(100))
    turned = split_for_calibration(names[::-1])
    assert {names[place] for place in learn} == {names[99 - place] for place in turned[0]}
    assert len(split_for_calibration(names[:20])[0]) == 10
    with pytest.raises(
        GramLoopError, match="15 images are too few to calibrate on some and judge the others"
    ):
        split_for_calibration(names[:15])


@pytest.mark.parametrize(
    ("model", "text", "needed"),
    [
        ("segmenter", "median", False),
        ("segmenter", "recentre:0.3", False),
        ("segmenter", "recentre:c=1", True),
        ("segmenter", "denoise", True),
        ("segmenter", "denoise:8", False),
        ("function", "levels", True),
    ],
)
def test_whether_statistics_are_needed(model: str, text: str, needed: bool, request: pytest.FixtureRequest):
    predictor = request.getfixturevalue(model)
    assert needs_calibration(parse_mitigations(text), predictor) == needed
