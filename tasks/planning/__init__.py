"""Expected work of a run, from the manifests of earlier runs: ``steep plan``.

`plan.make_plan` walks over the tasks of a stage. `measured` reads what earlier outputs took, `amounts`
says what the work of a stage is proportional to, `source` chooses the earlier output to go by,
`estimate` scales it, and `schedule` places the stages side by side. `review` compares a plan with the
run that followed it.
"""
