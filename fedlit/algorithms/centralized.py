"""Centralised training: one model on everybody's training data, the yardstick without federation.

    z by SGD on the union of all training sets, local_epochs passes in a "round"

There is no cohort to draw and nothing to average: one client holds all data. Users are tested as in any run.
"""

from fedlit.client.base import Client
from fedlit.client.step import Personal


class Centralized(Client):
    """One client that holds everybody's data."""

    __doc__ = f"{__doc__}\n{(Client.__doc__ or '').partition(chr(10))[2]}"
    pools_data = True

    def personal_model(self) -> Personal:
        """z: there is no other."""
        return Personal("global")
