"""A policy that answers clients of other protocols: OpenAI's chat completions, and MCP."""
