"""What is made of finished runs: tables, figures and the report that holds them."""

from fedlit.report.write import write_report as write_report
