"""Search: good placements within a given number of evaluations.

One placement that is measured is one evaluation, whoever proposed it. A strategy is a
generator: it yields placements and is sent their costs, and whoever drives it decides when to
stop. So strategies neither count nor measure, and one can hand over to another.
"""
