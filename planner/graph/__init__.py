"""The operation graph: ops, what each costs, holds and waits for; op lists as columns."""
