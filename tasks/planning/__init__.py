"""What a run needs: memory, disk and GPU hours of its stages, from the configuration alone.

`plan.make_plan` asks every stage what it opens and how much it does. `memory` and `clock` compute with the
shapes of the models, `sizes` has the amounts of the data, and `rates` what a GPU does in a second.
"""
