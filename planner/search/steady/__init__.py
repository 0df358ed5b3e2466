"""The search without a flush: least seconds a micro-batch in steady state."""
