"""Names of the classes of the released heads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gramloop.data.folders import read_class_list

Classes = Mapping[int, str | None]  # a model's numbers for classes, with names where they are known

_ADE20K = Path(__file__).parents[1] / "data" / "ade20k.txt"
# COCO numbers its 80 categories from 1 to 90 with gaps; a dash is a number that is not used
_COCO = """
person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, -, stop
sign, parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, -,
backpack, umbrella, -, -, handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, baseball
bat, baseball glove, skateboard, surfboard, tennis racket, bottle, -, wine glass, cup, fork, knife,
spoon, bowl, banana, apple, sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake, chair,
couch, potted plant, bed, -, dining table, -, -, toilet, -, tv, laptop, mouse, remote, keyboard, cell
phone, microwave, oven, toaster, sink, refrigerator, -, book, clock, vase, scissors, teddy bear, hair
drier, toothbrush
"""

# the stuff of COCO's panoptic annotations, under its numbers
_COCO_STUFF = """
92 banner, 93 blanket, 95 bridge, 100 cardboard, 107 counter, 109 curtain, 112 door-stuff, 118 floor-wood,
119 flower, 122 fruit, 125 gravel, 128 house, 130 light, 133 mirror-stuff, 138 net, 141 pillow,
144 platform, 145 playingfield, 147 railroad, 148 river, 149 road, 151 roof, 154 sand, 155 sea, 156 shelf,
159 snow, 161 stairs, 166 tent, 168 towel, 171 wall-brick, 175 wall-stone, 176 wall-tile, 177 wall-wood,
178 water-other, 180 window-blind, 181 window-other, 184 tree-merged, 185 fence-merged,
186 ceiling-merged, 187 sky-other-merged, 188 cabinet-merged, 189 table-merged, 190 floor-other-merged,
191 pavement-merged, 192 mountain-merged, 193 grass-merged, 194 dirt-merged, 195 paper-merged,
196 food-other-merged, 197 building-other-merged, 198 rock-merged, 199 wall-other-merged, 200 rug-merged
"""


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.replace("\n", " ").split(",")]


ADE20K: dict[int, str] = dict(enumerate(read_class_list(_ADE20K).names))
COCO: dict[int, str] = {number: name for number, name in enumerate(_split(_COCO), start=1) if name != "-"}
COCO_NUMBERS = 91  # that a head has which uses these as they are: none is 0
COCO_STUFF: dict[int, str] = {int(part.split()[0]): part.split()[1] for part in _split(_COCO_STUFF)}
COCO_PANOPTIC: dict[int, str] = COCO | COCO_STUFF  # things first, as panoptic heads count them


def coco_classes(count: int) -> Classes:
    """COCO's classes with stuff, or without, where there are so many; else none."""
    return {len(COCO_PANOPTIC): COCO_PANOPTIC, len(COCO): COCO}.get(count, {})
