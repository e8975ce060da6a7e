"""Sampling paths: grammars, spans, the sampler, and importing what other systems wrote."""
