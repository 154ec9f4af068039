"""What an answer that is not good enough costs."""


def shortfall(quality_worth: float, acceptable: float, loss: float) -> float:
    """quality_worth x P(the answer falls short); `loss` is the chance that the form itself harms it."""
    return quality_worth * (1.0 - acceptable * (1.0 - loss))
