"""Centralised training: one model on everybody's training data, as the reference without federation.

    z by SGD on the union of all training sets, local_epochs passes in a "round"

No cohort is drawn and nothing is averaged: one client holds all data. Users are tested as in any run.
"""

from fedlit.client.base import Client
from fedlit.client.step import Personal


class Centralized(Client):
    """One client that holds everybody's data."""

    __doc__ = f"{__doc__}\n{(Client.__doc__ or '').partition(chr(10))[2]}"
    pools_data = True

    def personal_model(self) -> Personal:
        """z, the only model."""
        return Personal("global")
