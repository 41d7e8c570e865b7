"""The demo's recipe in little: every step of it, each as short as it can be."""

from __future__ import annotations

_TINY = """
name: {name}
steps: {steps}
device: cpu
drafter: {{mask_token_id: 258, block_size: 4, num_layers: 1}}
verifier:
  demo: {{hidden_size: 32, intermediate_size: 48, num_hidden_layers: 3, num_attention_heads: 2, num_key_value_heads: 1,
         steps: 5, rows: 2, row_tokens: 64}}
corpus: {{data_dir: {data_dir}, num_prompts: 16, prompt_tokens: 16, response_tokens: 32, num_eval_prompts: 4}}
data: {{rows: 2, row_tokens: 128}}
anchors: {{per_row: 8}}
loss: {{chunk_slots: 16}}
decode: {{max_new_tokens: 8}}
checkpoint: {{every_steps: 3, keep: 9}}
log: {{every_steps: 2}}
"""


def tiny_recipe(*, name: str = "tiny", steps: int = 6, data_dir: object = "data") -> str:
    """The recipe's text; what is left out of it has the trainer's defaults."""
    return _TINY.format(name=name, steps=steps, data_dir=data_dir)
