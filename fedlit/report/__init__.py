"""What is made of finished runs: tables, figures, the report that holds them, and the dashboard.

It reads run folders; nothing here trains or needs torch.
"""

from fedlit.report.write import write_report as write_report
