"""The closed world: a corpus, questions and an exact oracle, all generated from one seed.

`vocabulary.toml` holds relations, wordings and words; `schema` reads it. `fact_generation` draws
entities and facts, `documents` writes them as text, and `world` holds both. `questions` turns facts
into questions, `regions` proposes questions, `splits` draws them without overlap, and `formats` and
`write` put them on disk in the formats of the published data sets, under `file_names`. `oracle` and
`reading` judge texts against the facts.
"""
