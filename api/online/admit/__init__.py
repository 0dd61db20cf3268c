"""Step 2 of an online call: limits, plan and admission."""
