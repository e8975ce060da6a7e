"""The tiny reader: a Llama with under two million parameters that reads, trained on two CPU cores.

`python -m benchmarks.tiny_reader.train` creates it from a seed. The tokenizer is trained on the
text of generated worlds. The model is trained in phases (`curriculum`): copying of random tokens,
passage reading, whole trajectories in random formats. Its README holds the evaluation (`evaluate`)
and a test of how well a LoRA adapter learns a grammar on it (`adapter_check`).
"""
