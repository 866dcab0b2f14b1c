"""The sub-commands: arguments → options → one function call."""
