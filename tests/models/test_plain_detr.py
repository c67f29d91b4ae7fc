"""The head against the reference's numbers, stage by stage and as a whole.

A query's position is the sine of 2 pi times its box in pixels, and a proposed box is known to 1e-5 pixel at
best: that is the spacing of float32 numbers around 150. One such step per coordinate moves the final boxes by
1.2e-3 to 4.1e-3 pixel (measured over twelve draws, everything else in float64), while the same step anywhere
behind the sine moves them by 3e-5 at most. The float32 reference itself is 3.7e-3 pixel away from the same
computation in float64. The comparison of the whole head therefore takes that one way point, the queries'
positions, from the reference; how they are computed is compared by itself, from the way point before.
"""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from gramloop.models import plain_detr
from gramloop.models.checkpoint import Checkpoint
from gramloop.models.plain_detr import (
    BoxCrossAttention,
    PlainDetr,
    PlainDetrConfig,
    best_detections,
    centre_to_corners,
    corners_to_centre,
    infer_plain_detr,
    map_positions,
    propose,
    refine,
    stride_projections,
)

STEPS = Path(__file__).parents[1] / "golden" / "detector_steps.safetensors"
QUERY_POSITIONS = {"transformer.pos_trans_norm"}
# With the queries' positions given, 1, 2 and 4 threads with seven choices of instruction sets came within 3.1e-4
# pixel and 1.4e-5 of the reference.
BOX_TOLERANCE, LOGIT_TOLERANCE = 8e-4, 4e-5


@pytest.fixture(scope="module")
def steps():
    return load_file(STEPS)


def described(weights):
    shapes = {name: tuple(value.shape) for name, value in weights.items()}
    return Checkpoint(Path("head.pth"), shapes, {}, lambda: weights)


@pytest.fixture
def head(golden):
    weights = {
        name: value for name, value in golden("detector").weights.items() if not name.startswith("backbone.")
    }
    head = PlainDetr(infer_plain_detr(described(weights)))
    head.load_state_dict(weights)
    return head.eval()


def run(head, steps, replaced=frozenset()):
    """Outputs, and the largest difference at each way point; outputs of ``replaced`` are the reference's."""
    differences = {}

    def compare(name):
        def hook(module, inputs, output):
            differences[name] = (output - steps[name]).abs().max().item()
            return steps[name].to(output.dtype) if name in replaced else None

        return hook

    for name, module in head.named_modules():
        if name in steps:
            module.register_forward_hook(compare(name))
    dtype = head.query_embed.weight.dtype
    with torch.inference_mode():
        logits, boxes = head(steps["backbone.0.0.tensors"].to(dtype), steps["backbone.0.0.mask"])
    return logits, boxes, differences


def test_map_positions_are_the_reference_s(steps):
    positions = map_positions(steps["backbone.0.0.mask"], 64)
    expected = steps["backbone.1.0"].flatten(2).transpose(1, 2)
    torch.testing.assert_close(positions, expected, atol=1e-6, rtol=0)


def test_every_stage_continues_the_reference(head, steps):
    _, _, differences = run(head, steps, replaced=set(steps))
    assert len(differences) == 9
    ill_conditioned = differences.pop("transformer.pos_trans_norm")
    # Nine of the twelve queries are equal bit for bit on the machine this was written on, and the others once
    # one of their deltas changes by two units in the last place. Two steps of 1.5e-5 pixel, times 2 pi, are 2e-4.
    assert ill_conditioned <= 2e-4
    assert all(difference <= 2e-5 for difference in differences.values()), differences


def test_logits_and_boxes_are_the_reference_s(head, steps, golden):
    expected = golden("detector").values
    logits, boxes, _ = run(head, steps, replaced=QUERY_POSITIONS)
    torch.testing.assert_close(logits, expected["pred_logits"], atol=LOGIT_TOLERANCE, rtol=0)
    torch.testing.assert_close(boxes, expected["pred_boxes"], atol=BOX_TOLERANCE, rtol=0)


def test_detections_are_the_reference_s(head, steps, golden):
    expected = golden("detector").values
    logits, boxes, _ = run(head, steps, replaced=QUERY_POSITIONS)
    corners, scores, labels = best_detections(logits[0], boxes[0], (144, 208), (144, 208), 12)
    torch.testing.assert_close(scores, expected["post.scores"], atol=LOGIT_TOLERANCE, rtol=0)
    assert torch.equal(labels, expected["post.labels"])
    torch.testing.assert_close(corners, expected["post.boxes"], atol=BOX_TOLERANCE, rtol=0)


def test_detections_are_scaled_to_the_original_image():
    logits = torch.tensor([[-1.0, 2.0], [3.0, -5.0]])
    boxes = torch.tensor([[50.0, 20.0, 20.0, 10.0], [5.0, 5.0, 20.0, 30.0]])
    corners, scores, labels = best_detections(logits, boxes, (40, 100), (20, 200), keep=3)
    torch.testing.assert_close(scores, torch.tensor([3.0, 2.0, -1.0]).sigmoid())
    assert labels.tolist() == [0, 1, 0]
    assert corners.tolist() == [[0, 0, 30, 10], [80, 7.5, 120, 12.5], [80, 7.5, 120, 12.5]]


def test_an_image_with_few_proposals_has_fewer_detections(head):
    with torch.inference_mode():
        logits, boxes = head(torch.randn(1, 512, 1, 1), torch.zeros(1, 1, 1, dtype=torch.bool))
    assert logits.shape == (1, 5, 91)  # 4 cells of stride 8 and 1 of stride 16; strides 32 and 64 have none
    assert torch.isfinite(boxes).all()


finite = st.floats(-500, 500, width=32)


@given(st.lists(st.tuples(finite, finite, st.floats(0, 500), st.floats(0, 500)), min_size=1, max_size=5))
def test_corner_form_and_centre_form_are_inverse(rows):
    boxes = torch.tensor(rows, dtype=torch.float64)
    torch.testing.assert_close(corners_to_centre(centre_to_corners(boxes)), boxes)


def test_refinement_moves_by_the_size_scales_by_the_exponential_and_stays_inside():
    boxes = torch.tensor([[[50.0, 40.0, 20.0, 10.0]] * 3])
    deltas = torch.tensor([[[0.5, -1.0, 0.0, 0.0], [0.0, 0.0, 99.0, -99.0], [5.0, 0.0, 0.0, 0.0]]])
    moved, scaled, outside = refine(boxes, deltas, torch.tensor([[100.0, 80.0]]))[0]
    assert moved.tolist() == [60, 30, 20, 10]
    torch.testing.assert_close(scaled, torch.tensor([50, 40, 100, 10 * 0.016]), atol=1e-4, rtol=0)
    assert outside.tolist() == [100, 40, 0, 10]


def test_proposals_on_padding_or_outside_the_size_limits_carry_nothing():
    padding = torch.zeros(1, 8, 8, dtype=torch.bool)
    padding[:, :, 4:] = True
    memory, boxes, valid_size = propose(torch.ones(1, 32, 8, 8), padding, stride_projections(32))
    assert valid_size.tolist() == [[64, 128]]
    usable = memory.detach().abs().sum(-1)[0] > 0
    boxes = boxes[0]
    assert usable.any()
    assert (boxes[usable][:, 0] < 64).all()
    assert (boxes[usable][:, 2] == 50).all()  # 100 pixels exceed 99 % of the width 64
    assert (boxes[~usable] == 128).all()


def test_cross_attention_in_pieces_is_the_same_attention(monkeypatch):
    torch.manual_seed(0)
    attention = BoxCrossAttention(32, 4, 16).double()
    queries, memory = torch.randn(2, 20, 32).double(), torch.randn(2, 15, 32).double()
    boxes = torch.rand(2, 20, 4).double() * 60
    padding = torch.zeros(2, 3, 5, dtype=torch.bool)
    padding[1, 2:] = True
    whole = attention(queries, boxes, memory, memory, padding)
    monkeypatch.setattr(plain_detr, "_QUERIES_AT_ONCE", 7)
    torch.testing.assert_close(attention(queries, boxes, memory, memory, padding), whole)


def test_cross_attention_sees_only_the_offsets_of_a_box_to_a_patch():
    """Patches with equal contents: the weights then follow from the bias alone, here computed one by one."""
    torch.manual_seed(0)
    attention = BoxCrossAttention(32, 1, 16).double()
    boxes = torch.tensor([[[20.0, 12.0, 30.0, 8.0]]]).double()
    values = torch.randn(1, 6, 32).double()
    x1, y1, x2, y2 = 5.0, 8.0, 35.0, 16.0
    bias = []
    for row in range(2):
        for column in range(3):
            x, y = 16 * column + 8, 16 * row + 8
            across = attention.cpb_mlp1(torch.tensor([x1 - x, x2 - x]).double())
            down = attention.cpb_mlp2(torch.tensor([y1 - y, y2 - y]).double())
            bias.append(across + down)
    weights = torch.cat(bias).softmax(0)
    expected = attention.proj((weights[:, None] * attention.v(values[0])).sum(0))
    padding = torch.zeros(1, 2, 3, dtype=torch.bool)
    keys = torch.ones(1, 6, 32).double()
    torch.testing.assert_close(attention(keys[:, :1], boxes, keys, values, padding)[0, 0], expected)


def test_the_default_head_is_the_released_one():
    with torch.device("meta"):
        head = PlainDetr()
    assert infer_plain_detr(described(head.state_dict())) == PlainDetrConfig()
    assert sum(value.numel() for value in head.state_dict().values()) == 137_850_418
