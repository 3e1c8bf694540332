"""Mappings of tensors into this process's memory."""


class Mapping:
    """To come."""
