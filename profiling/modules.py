"""The part of the model that each op belongs to.

Names tell for most ops: TensorFlow puts the scope of the layer in them, and ``gradient_tape/``
before the same scope for its gradients. The others, such as the sums of gradients, take the
module of their surroundings:

1. Ops that must share a device share a module: the first one named in the set.
2. Then, from the last op to the first, an op takes the module of its first consumer.
3. Then, from the first op to the last, an op takes the module of its first producer.

Only data edges count: a control edge says when, not what for.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

ModuleRule = Callable[[str], str]
"""From an op's name to its module ``"unit/part"``, or ``""`` if the name does not tell."""


def assign_modules(
    named: Sequence[str],
    colocations: Sequence[str],
    edges: Sequence[tuple[int, int]],
    order: Sequence[int],
) -> list[str]:
    """Return the module of every op.

    Args:
        named: For each of N ops, the module that its name tells, or ``""``.
        colocations: For each op, the key of the set that must share a device, or ``""``.
        edges: Data edges, (producer, consumer).
        order: The N ops in topological order.
    """
    modules = list(named)
    _share_within_colocations(modules, colocations)
    consumers: dict[int, list[int]] = {}
    producers: dict[int, list[int]] = {}
    for producer, consumer in edges:
        consumers.setdefault(producer, []).append(consumer)
        producers.setdefault(consumer, []).append(producer)
    _take_from_neighbours(modules, reversed(order), consumers)
    _share_within_colocations(modules, colocations)
    _take_from_neighbours(modules, iter(order), producers)
    _share_within_colocations(modules, colocations)
    return modules


def _share_within_colocations(modules: list[str], colocations: Sequence[str]) -> None:
    module_of_key: dict[str, str] = {}
    for module, key in zip(modules, colocations, strict=True):
        if module and key:
            module_of_key.setdefault(key, module)
    for op, key in enumerate(colocations):
        if not modules[op]:
            modules[op] = module_of_key.get(key, "")


def _take_from_neighbours(
    modules: list[str], order: Iterable[int], neighbours: Mapping[int, list[int]]
) -> None:
    for op in order:
        if not modules[op]:
            around = (modules[other] for other in sorted(neighbours.get(op, ())))
            modules[op] = next((module for module in around if module), "")
