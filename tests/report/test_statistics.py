from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gramloop.metrics.bootstrap import Interval, cluster_bootstrap, image_bootstrap, miou_delta, widened
from gramloop.report.load import load_runs
from gramloop.report.resampling import Resampled, count_resamplings
from gramloop.report.run import Run
from gramloop.report.statistics import Gain, gains_of, verdict_of
from small_runs import counts_of
from small_stores import CONDITIONS, make_plan, pixels, write_store


def one_run(folder: Path, **changes: object) -> Run:
    write_store(folder, make_plan(**changes))  # type: ignore[arg-type]
    return load_runs([folder]).runs[0]


def test_over_families_with_all_their_severities(tmp_path: Path) -> None:
    run = one_run(tmp_path / "r")
    (gain,) = gains_of([run])
    ours, theirs = run.scores("gramloop"), run.scores("baseline")
    gains: dict[str, list[float]] = {}
    for condition in run.shifted:
        gains.setdefault(condition.name, []).append(ours[condition] - theirs[condition])
    alone = cluster_bootstrap(gains)
    assert gain.interval is not None
    assert gain.interval.units == alone.units == 3
    assert [gain.interval.low, gain.interval.high] == pytest.approx([alone.low, alone.high], abs=1e-9)
    assert gain.points == pytest.approx(gain.interval.estimate, abs=1e-9)


def test_over_images_with_all_their_shifted_versions(tmp_path: Path) -> None:
    run = one_run(tmp_path / "r")
    told: list[str] = []
    (gain,) = gains_of([run], "images", replicates=500, on_progress=told.append)
    stacks = [
        np.stack([counts_of(run.stored(key).methods[method]) for key in CONDITIONS])
        for method in ("baseline", "gramloop")
    ]
    together = image_bootstrap(miou_delta(*stacks), 12, replicates=500)
    assert gain.interval is not None
    assert [gain.interval.estimate, gain.interval.low, gain.interval.high] == pytest.approx(
        [together.estimate, together.low, together.high], abs=1e-9
    )
    assert gain.points == pytest.approx(together.estimate, abs=1e-9)
    assert len(told) == count_resamplings([run]) == 2 * len(CONDITIONS)


def test_an_image_that_failed_once_is_drawn_nowhere(tmp_path: Path) -> None:
    write_store(tmp_path / "r", make_plan(), lost={"fog/1": [3]})
    (gain,) = gains_of(load_runs([tmp_path / "r"]).runs, "images", replicates=50)
    assert gain.interval is not None
    assert gain.interval.units == 11


def test_over_images_of_detections(tmp_path: Path) -> None:
    """The baseline misses a third of the cats and no dog, in every condition alike."""
    run = one_run(tmp_path / "r", task="detection")
    (gain,) = gains_of([run], "images", replicates=200)
    assert gain.interval is not None
    assert gain.interval.estimate == pytest.approx(gain.points, abs=1e-9)
    assert gain.words == "helps"


def test_domains_are_drawn_each_for_itself(tmp_path: Path) -> None:
    run = one_run(tmp_path / "r", suite="coco-o", task="detection", conditions=["sketch", "weather"])
    (gain,) = gains_of([run], "images", replicates=50)
    assert gain.interval is not None
    assert gain.interval.units == 24
    assert "over 24 images" in verdict_of(gain).sentence


def test_one_family_has_no_interval_and_says_why(tmp_path: Path) -> None:
    run = one_run(tmp_path / "r", conditions=["fog/1", "fog/3"])
    (gain,) = gains_of([run])
    assert gain.interval is None
    assert gain.points is not None
    said = verdict_of(gain)
    assert said.words == "inconclusive"
    assert "fog is the only shift family, and one family says nothing of others" in said.sentence


def test_missing_conditions_have_no_gain_and_say_why(tmp_path: Path) -> None:
    write_store(tmp_path / "r", make_plan(), skip=["fog/1"])
    for over in ("families", "images"):
        (gain,) = gains_of(load_runs([tmp_path / "r"]).runs, over)  # type: ignore[arg-type]
        assert (gain.points, gain.interval) == (None, None)
        assert "1 of 6 conditions have no score" in verdict_of(gain).sentence


def test_clean_images_have_no_families(tmp_path: Path) -> None:
    run = one_run(tmp_path / "r", suite="scenes", conditions=["clean"])
    assert "clean images are no shift" in gains_of([run])[0].reason
    assert gains_of([run], "images", replicates=50)[0].interval is not None


def test_the_corrected_interval_decides_where_the_other_covers_too_little(tmp_path: Path) -> None:
    drawn = Resampled(one_run(tmp_path / "r"), "families")
    gain = Gain(drawn, "gramloop", 0.4, Interval(0.4, 0.1, 0.7, units=3))
    assert gain.coverage == pytest.approx(0.749, abs=0.001)
    assert gain.words == "inconclusive"
    assert "by which the verdict goes" in verdict_of(gain).sentence
    many = replace(gain, interval=Interval(0.4, 0.02, 0.78, units=15))
    assert many.words == "helps"
    assert widened(many.interval).low < 0  # type: ignore[arg-type]
    assert "take the verdict with care" in verdict_of(many).sentence
    crowd = replace(gain, interval=Interval(0.4, 0.1, 0.7, units=2000))
    assert "corrected" not in verdict_of(crowd).sentence


def test_equal_methods_cannot_be_told_apart(tmp_path: Path) -> None:
    write_store(
        tmp_path / "r", make_plan(), lambda condition, method, place: pixels(condition, "same", place)
    )
    (gain,) = gains_of(load_runs([tmp_path / "r"]).runs)
    assert (gain.points, gain.words) == (0, "inconclusive")
