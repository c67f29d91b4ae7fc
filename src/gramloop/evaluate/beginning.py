"""Whether a plan may be run in a folder, told before anything there is touched; and the plan of a folder that lost it.

Every unit's file holds the plan that it was made with. So a plan.json that was edited, torn or deleted costs no unit: it
is compared with what the units say, and made again from them.
"""

from __future__ import annotations

from pathlib import Path

from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import Plan, difference, fitting, read_plan
from gramloop.evaluate.store import PLAN, UNITS, Store, owner_of, recorded_plan
from gramloop.util.files import atomic_write, is_taken, remove_leftovers

SCENES = "scenes"  # where scenes are drawn in a folder of results
_TAKEN = f"{{folder}} is not empty and has no {PLAN}; choose a new folder for the results"


def begin(folder: Path, plan: Plan) -> Store:
    """The store of a plan: the one that the folder holds, if its results would fit, else a new one."""
    plan = check_folder(folder, plan)
    path, text = folder / PLAN, plan.text().encode()
    if not path.is_file() or path.read_bytes() != text:
        atomic_write(path, text, durable=True)
    remove_leftovers(folder)  # with care: jobs of a cluster outlive the run that started them
    return Store(folder, plan)


def check_folder(folder: Path, plan: Plan) -> Plan:
    """The plan as the folder knows it, or a sentence about why it cannot be run there; nothing is written."""
    owners = unit_owners(folder)
    if plan.hash == next(iter(owners), None) and not _is_backed(folder / PLAN, owners):
        return plan  # whatever became of plan.json
    if (folder / PLAN).is_file():
        found = plan_in(folder)
        wanted = fitting(plan, found)
        if found.hash != wanted.hash:
            raise GramLoopError(
                f"{folder} holds results of the plan {found.hash}, not of {wanted.hash}: it was made with "
                f"{difference(found, wanted)}; choose another folder, or ask for what it was made with"
            )
        return wanted
    if not owners and is_taken(folder, SCENES):
        raise GramLoopError(_TAKEN.format(folder=folder))
    for owner, path in owners.items():
        earlier = recorded_plan(path)
        if earlier is not None and (wanted := fitting(plan, earlier)).hash == owner:
            return wanted
        if earlier is not None:
            raise GramLoopError(
                f"{folder} has lost its {PLAN}, and its units were made with {difference(earlier, plan)}; "
                f"gramloop evaluate --out {folder} goes on with what they were made with"
            )
        raise GramLoopError(
            f"{folder} has lost its {PLAN}, and {path} belongs to the plan {owner}, not to {plan.hash}"
        )
    return plan


def check_before_drawing(folder: Path, scenes: Path) -> None:
    """Refuse a folder that cannot be meant, before scenes are drawn into it."""
    if (folder / PLAN).is_file() or unit_owners(folder):
        if Path(plan_in(folder).data.root) != scenes.resolve() and scenes.is_relative_to(folder):
            raise GramLoopError(
                f"{folder} holds an evaluation of {plan_in(folder).data.root}, not of scenes drawn there; choose another "
                "folder, or give --data"
            )
    elif is_taken(folder, SCENES):
        raise GramLoopError(_TAKEN.format(folder=folder))


def _is_backed(path: Path, owners: dict[str, Path]) -> bool:
    """Whether units belong to the plan of a file."""
    try:
        return path.is_file() and read_plan(path).hash in owners
    except GramLoopError:
        return False


def plan_in(folder: Path) -> Plan:
    """The plan of a results folder: its plan.json, or where that is gone what its units say; nothing is written."""
    owners, path = unit_owners(folder), folder / PLAN
    if not path.is_file():
        return _rebuilt(folder, owners)
    again = f"move {path} away, and gramloop evaluate --out {folder} makes it again from the units, of which none is lost"
    try:
        found = read_plan(path)
    except GramLoopError as error:
        raise GramLoopError(f"{error}; {again}" if owners else str(error)) from error
    if owners and found.hash not in owners:
        owner, unit = next(iter(owners.items()))
        earlier = recorded_plan(unit)
        changed = "" if earlier is None else f": they were made with {difference(earlier, found)}"
        raise GramLoopError(
            f"{path} was changed: its units belong to the plan {owner}, not to {found.hash}{changed}; {again}"
        )
    return found


def unit_owners(folder: Path) -> dict[str, Path]:
    """The plans that stored units belong to, by hash, each with one of its files; the plan of most units first."""
    found: dict[str, list[Path]] = {}
    for path in sorted((folder / UNITS).glob("*/*.parquet")):
        if (owner := owner_of(path)) is not None:
            found.setdefault(owner, []).append(path)
    ordered = sorted(found.items(), key=lambda pair: -len(pair[1]))
    return {owner: paths[0] for owner, paths in ordered}


def _rebuilt(folder: Path, owners: dict[str, Path]) -> Plan:
    if not owners:
        raise GramLoopError(f"{folder} holds no evaluation; it would have a {PLAN}")
    if len(owners) > 1:
        listed = ", ".join(f"{owner} ({path.name})" for owner, path in owners.items())
        raise GramLoopError(
            f"{folder} has lost its {PLAN}, and its units belong to several plans: {listed}; give the command that began "
            "it again, and it goes on with the units of that plan"
        )
    [(owner, path)] = owners.items()
    plan = recorded_plan(path)
    if plan is None or plan.hash != owner:
        raise GramLoopError(
            f"{folder} has lost its {PLAN}, and {path} was written before units kept it; give the command that began it "
            f"again, gramloop evaluate --suite … --out {folder}, and it goes on with the units of the plan {owner}"
        )
    return plan
