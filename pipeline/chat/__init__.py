"""Many prompts to a chat model, through an engine of this process or an endpoint elsewhere."""
