"""``gramloop sheet``: one picture under every condition and severity."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from gramloop.cli.help import examples
from gramloop.cli.output import Ended
from gramloop.errors import GramLoopError

KEYS = {"file": "the picture", "width": "in pixels", "height": "in pixels", "bytes": "of the file"}
SUFFIXES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.epilog = "One column for each suite, one row for each condition." + examples(
        "gramloop sheet shifts.jpg",
        "gramloop sheet noise.png --image photo.jpg --suite photo-c --condition noise --severity 1 --severity 5",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="picture to write: .png, .jpg or .webp")
    shown = parser.add_argument_group("what is shown")
    shown.add_argument("--suite", action="append", metavar="NAME", help="suite to show (a -c and a -p)")
    shown.add_argument(
        "--condition", action="append", default=[], metavar="NAME", help="some conditions or groups only"
    )
    shown.add_argument("--severity", action="append", type=int, metavar="N", help="some only (1 to 5)")
    shown.add_argument("--image", type=Path, metavar="FILE", help="your own picture instead of a drawn scene")
    shown.add_argument("--scene", type=int, default=0, metavar="N", help="number of the drawn scene (0)")
    sizes = parser.add_argument_group("sizes")
    sizes.add_argument("--size", type=int, default=240, metavar="PX", help="side of the drawn scene (240)")
    sizes.add_argument("--thumb", type=int, default=120, metavar="PX", help="width of a thumbnail (120)")
    sizes.add_argument("--quality", type=int, default=85, metavar="N", help="of .jpg and .webp (85)")


def run(args: argparse.Namespace) -> Ended:
    """Draw and store the sheet."""
    from gramloop.data.contact_sheet import SheetStyle, contact_sheet
    from gramloop.data.records import read_image
    from gramloop.data.suites import SEVERITIES, find_suite
    from gramloop.shifts.common import check_severity
    from gramloop.util.files import atomic_write

    kind = SUFFIXES.get(args.file.suffix.lower())
    if kind is None:
        raise GramLoopError(f"{args.file} needs a name that ends with {', '.join(SUFFIXES)}")
    if not 16 <= args.thumb <= 1024:
        raise GramLoopError(f"thumbnails are 16 to 1024 px wide, not {args.thumb}")
    suites = [find_suite(name) for name in args.suite or ("sheet-c", "sheet-p")]
    for suite in suites:
        if not suite.generated:
            raise GramLoopError(f"the suite {suite.name!r} is not made from clean images, so it has no sheet")
    if args.image is not None:
        image = read_image(args.image, upright=True)
    else:
        from gramloop.data.scenes.drawing import scene

        image = scene(args.scene, size=args.size).image
    severities = [check_severity("a sheet", severity) for severity in args.severity or SEVERITIES]
    style = SheetStyle(thumb=args.thumb)
    sheet = contact_sheet(image, suites, style, conditions=args.condition, severities=severities)
    buffer = io.BytesIO()
    sheet.save(buffer, kind, quality=args.quality)
    atomic_write(args.file, buffer.getvalue())
    print(f"{args.file}: {sheet.width} x {sheet.height}, {len(buffer.getvalue()) / 1e3:.0f} kB")
    size = {"width": sheet.width, "height": sheet.height, "bytes": len(buffer.getvalue())}
    return Ended(0, lambda: {"file": args.file, **size})
