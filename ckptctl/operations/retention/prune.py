"""``ckptctl prune``: plan, ask, carry out; and empty the trash."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ckptctl.dataclass import replace
from ckptctl.errors import Refused
from ckptctl.model.manifest import TRASH
from ckptctl.operations.place import Place, address
from ckptctl.operations.retention.emptying import empty
from ckptctl.operations.retention.execute import carry_out
from ckptctl.operations.retention.plan import plan, proven
from ckptctl.operations.retention.policy import Plan, Policy
from ckptctl.storage import WritableStore


def prune(
    store: WritableStore,
    policy: Policy,
    *,
    places: Sequence[Place] | None = None,
    dry_run: bool = False,
    confirm: Callable[[Plan], bool] | None = None,
) -> Plan:
    """Make a plan and carry it out, once ``confirm`` has agreed to it; raises ``Refused`` if not.

    The trash is emptied first, so that what goes into it now can still be brought back.
    """
    if policy.keeps:
        chosen = plan(store, policy, places=places, renames=store.renames)
    else:
        trash = address(store, TRASH) if store.renames else ""
        chosen = Plan(store.url, (), trash=trash, keepers=proven(store, policy))
    emptying = policy.trash_older_than is not None
    if emptying:
        chosen = replace(chosen, emptied=empty(store, policy, chosen.keepers, dry_run=True))
    if dry_run or not (chosen.doomed or chosen.emptied):
        return chosen
    if confirm is not None and not confirm(chosen):
        raise Refused("not confirmed; nothing was changed")
    emptied = empty(store, policy, chosen.keepers) if emptying else ()
    gone = {fate.name: fate for fate in carry_out(store, chosen)}
    fates = tuple(gone.get(fate.name, fate) for fate in chosen.fates)
    return replace(chosen, fates=fates, emptied=emptied, done=True)
