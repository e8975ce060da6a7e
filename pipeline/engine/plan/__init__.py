"""The plan of a run: GPU memory, disk and hours of its stages, from the configuration alone.

`plan.make_plan` asks every stage for the parts that it opens and for its amount of work. `memory`
and `clock` compute with the shapes of the models, `sizes` has the amounts of the data, and `rates`
the work of a GPU or a core in a second.
"""
