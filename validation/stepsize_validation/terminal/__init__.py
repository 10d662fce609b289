"""Tables on a terminal, of whatever width."""

from stepsize_validation.terminal.tables import Terminal, empty_table, folded, key_value_table, show

__all__ = ["Terminal", "empty_table", "folded", "key_value_table", "show"]
