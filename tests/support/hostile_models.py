"""Weights and descriptions of models that are broken in ways that a number decides."""

from __future__ import annotations

import json
import random
from pathlib import Path

import broken_files
from hostile_case import Case, World, copied, plan_of


def bad_weights(world: World, rng: random.Random, place: Path) -> Case:
    model = copied(world, "model", place)
    name = rng.choice(
        ["backbone/model.safetensors", "segment.safetensors", "detect.safetensors", "json", "json"]
    )
    task = "detect" if name.startswith("detect") else "segment"
    if name != "json":
        file = model / name
        broken_files.break_weights(file, rng)
        good = world.model / name
        sound = lambda: broken_files.sound_weights(file, good) and _sound_taps(file)  # noqa: E731
    else:
        file = model / rng.choice(["tiny.json", "backbone/config.json"])
        content = json.loads(file.read_bytes())
        changed = broken_files.change_json(content, rng)
        file.write_bytes(broken_files.json_bytes(changed))
        sound = lambda: _sound_model(content, changed)  # noqa: E731
    command = ["predict", str(world.folder / "picture.png"), "--task", task, "--model", str(model)]
    command += ["--out", str(place / "out"), "--method", "baseline", "--no-picture"]
    if rng.random() < 0.5:
        command = plan_of(world, world.scenes, task, place / "out")
        command[command.index("--model") + 1] = str(model)
    return Case(command, (place / "out",), sound)


def _sound_taps(file: Path) -> bool:
    from safetensors import safe_open

    with safe_open(file, "pt") as opened:
        stored = (opened.metadata() or {}).get("taps")
    return stored is None or stored == "[2, 5]"


def _sound_model(before: dict, now: object) -> bool:
    """Fields that decide nothing may be anything; those that do are as they were."""
    deciding = (
        "stuff", "things", "detect", "model_type", "hidden_size", "num_hidden_layers", "intermediate_size",
        "num_attention_heads", "num_register_tokens", "patch_size", "use_gated_mlp", "hidden_act", "query_bias",
        "key_bias", "value_bias", "layer_norm_eps", "rope_theta", "num_channels",
    )  # fmt: skip
    if not isinstance(now, dict):
        return False
    kept = {name: now.get(name) for name in deciding if name in now}
    renamed = isinstance(now.get("stuff"), list) and all(isinstance(x, str) for x in now["stuff"])
    absent_is_usual = ("model_type", "hidden_act", "use_gated_mlp", "query_bias", "key_bias", "value_bias",
                       "layer_norm_eps", "num_channels", "hidden_size", "num_hidden_layers", "intermediate_size",
                       "num_register_tokens", "patch_size", "rope_theta")  # fmt: skip
    for name in deciding:
        if name not in before or (name not in now and name in absent_is_usual):
            continue
        if name in ("stuff", "things", "detect"):
            if name == "stuff" and not renamed:
                return False
            if name == "things" and (
                not isinstance(now.get(name), list)
                or len(now[name]) != len(before[name])
                or not all(isinstance(x, str) for x in now[name])
            ):
                return False
            if name == "detect" and (
                not isinstance(now.get(name), dict)
                or any(now[name].get(k) != v for k, v in before[name].items())
            ):
                return _without_optional(before[name], now.get(name))
        elif kept.get(name) != before[name] and name != "rope_theta":
            return False
    return True


def _without_optional(before: dict, now: object) -> bool:
    """The width of the detection head is 128 where it is left out, which the weights contradict here."""
    return isinstance(now, dict) and all(now.get(name) == value for name, value in before.items())
