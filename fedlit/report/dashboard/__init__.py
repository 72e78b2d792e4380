"""`fedlit dashboard`: runs as one HTML file that needs neither a server nor a network."""

from fedlit.report.dashboard.page import write_dashboard as write_dashboard
