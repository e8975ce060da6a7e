"""The tiny reader: a Llama of under two million parameters that reads, trained on two CPU cores.

`python -m pipeline.tiny_reader.train` makes it from nothing but a seed: a tokenizer from the text
of generated worlds, then three phases (copying random tokens, recalling facts, whole paths in
random formats), then an evaluation and a test of how well an adapter learns a grammar on it.
"""
