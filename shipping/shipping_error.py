"""How shipping fails."""


class ShippingError(Exception):
    """An image or a release that cannot be made; the message is one line with the next step."""
