"""Names of the classes that the released heads tell apart."""

from __future__ import annotations

from collections.abc import Mapping

Classes = Mapping[int, str | None]  # a model's numbers for classes, with names where they are known

_ADE20K = """
wall, building, sky, floor, tree, ceiling, road, bed, window pane, grass, cabinet, sidewalk, person,
earth, door, table, mountain, plant, curtain, chair, car, water, painting, sofa, shelf, house, sea,
mirror, rug, field, armchair, seat, fence, desk, rock, wardrobe, lamp, bathtub, railing, cushion, base,
box, column, signboard, chest of drawers, counter, sand, sink, skyscraper, fireplace, refrigerator,
grandstand, path, stairs, runway, case, pool table, pillow, screen door, stairway, river, bridge,
bookcase, blind, coffee table, toilet, flower, book, hill, bench, countertop, stove, palm, kitchen
island, computer, swivel chair, boat, bar, arcade machine, hovel, bus, towel, light, truck, tower,
chandelier, awning, street light, booth, television, airplane, dirt track, apparel, pole, land,
bannister, escalator, ottoman, bottle, buffet, poster, stage, van, ship, fountain, conveyer belt, canopy,
washer, plaything, swimming pool, stool, barrel, basket, waterfall, tent, bag, minibike, cradle, oven,
ball, food, step, tank, trade name, microwave, pot, animal, bicycle, lake, dishwasher, screen, blanket,
sculpture, hood, sconce, vase, traffic light, tray, ashcan, fan, pier, CRT screen, plate, monitor,
bulletin board, shower, radiator, glass, clock, flag
"""

# COCO numbers its 80 categories from 1 to 90 with gaps; a dash stands for a number that is not used
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


def _split(text: str) -> list[str]:
    return [name.strip() for name in text.replace("\n", " ").split(",")]


ADE20K: dict[int, str] = dict(enumerate(_split(_ADE20K)))
COCO: dict[int, str] = {number: name for number, name in enumerate(_split(_COCO), start=1) if name != "-"}
COCO_NUMBERS = 91  # that a head has which uses these as they are: none is 0
