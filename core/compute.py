"""What tokens cost before anything is measured."""

from typing import Final

OUTPUT_WEIGHT_PRIOR: Final = 4.0
"""Prompt tokens that an output token costs: engines read a prompt in parallel, and generate one
token after the other (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024, weigh
them 1:2; hosted models are priced 1:3 to 1:5)."""

PROMPT_TOKEN_S_PRIOR: Final = 0.0001
"""Seconds that a full engine needs for a prompt token: 10,000 a second, one GPU and 8 billion
parameters."""
