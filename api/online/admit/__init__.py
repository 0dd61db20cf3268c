"""Admits an online call: limits, plan and admission."""
